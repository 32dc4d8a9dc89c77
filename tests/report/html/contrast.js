// The contrast of every text with what is painted behind it, by the formula of WCAG 2, and which text it is.
const rgb = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = rgb(getComputedStyle(e).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const says = (e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
const seen = (e) => !e.closest("svg, .unseen, .skip, script, option") && e.checkVisibility() && says(e);
return [...document.querySelectorAll("body *")].filter(seen).map((e) => {
  const [high, low] = [luminance(rgb(getComputedStyle(e).color)), luminance(behind(e))].sort((x, y) => y - x);
  return [(high + 0.05) / (low + 0.05), `${e.tagName}.${e.className}: ${e.textContent.slice(0, 30)}`];
});
