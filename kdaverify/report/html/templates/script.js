"use strict";
(() => {
  document.body.classList.add("scripted");
  const announced = document.getElementById("announced");
  const table = document.getElementById("cases");
  const body = table.tBodies[0];
  const form = document.querySelector(".filters");
  const showing = document.getElementById("showing");

  const valueOf = (cell) => cell.dataset.value ?? cell.textContent.trim();

  const filter = () => {
    const wanted = new FormData(form);
    const text = wanted.get("text").trim().toLowerCase();
    wanted.delete("text");
    let shown = 0;
    for (const row of body.rows) {
      const fits = [...wanted].every(([name, value]) => value === "" || valueOf(row.querySelector(`[data-of=${name}]`)) === value);
      row.hidden = !(fits && row.textContent.toLowerCase().includes(text));
      shown += row.hidden ? 0 : 1;
    }
    showing.textContent = `${shown} of ${body.rows.length} shown`;
  };

  const sort = (header) => {
    const place = header.cellIndex;
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const key = (row) => {
      const cell = row.cells[place];
      return "number" in cell.dataset ? (cell.dataset.number === "inf" ? Infinity : Number(cell.dataset.number)) : valueOf(cell);
    };
    const compare = (a, b) => (typeof a === "number" ? (a === b ? 0 : a - b) : a.localeCompare(b));
    const rows = [...body.rows].sort((a, b) => (ascending ? 1 : -1) * compare(key(a), key(b)));
    body.append(...rows);
    announced.textContent = `sorted by ${header.textContent.trim()}, ${ascending ? "ascending" : "descending"}`;
  };

  const copied = (button, done) => {
    button.textContent = done ? "copied" : "select and copy";
    announced.textContent = done ? "the line is on the clipboard" : "the line is selected";
    setTimeout(() => { button.textContent = "copy"; }, 1600);
  };

  const copy = (button) => {
    const line = button.parentElement.querySelector("code");
    // A page opened from disk may have no clipboard: the line is selected then.
    const select = () => { getSelection().selectAllChildren(line); copied(button, document.execCommand("copy")); };
    if (navigator.clipboard) navigator.clipboard.writeText(line.textContent).then(() => copied(button, true), select);
    else select();
  };

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.matches(".copy")) copy(button);
    if (button?.matches(".sort")) sort(button.closest("th"));
  });

  // On paper nothing can be opened.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")].filter((part) => !part.closest("#cases"));
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of opened) part.open = false; });
})();
