"""Tables of the reference that the code gives."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import kdaverify
from kdaverify.adapters.operator_kernel import SHARED
from kdaverify.adapters.shipped import SHIPPED
from kdaverify.budgets.attention.contract import (
    NARROW,
    NUMBERS,
    RETURNED,
    TENSORS,
    WORDS,
    attention_contract,
)
from kdaverify.budgets.measures import RULERS
from kdaverify.budgets.presets import presets
from kdaverify.budgets.tensors import PIPELINES
from kdaverify.checks.calls import RULES as CALL_RULES
from kdaverify.checks.laws.registry import LAWS
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.checks.published.registry import RULES
from kdaverify.operator import OPERATORS, operator_named
from kdaverify.operators.attention.tolerances_operator import TolerancesOperator
from kdaverify.operators.function import FunctionOperator
from kdaverify.problems import REGIMES
from kdaverify.problems.probes import PROBES
from kdaverify.survey.state import ImplementationState, KernelState
from kdaverify.verdicts.decision import Ruling
from tests.docs import attention_tables, size_tables
from tests.docs.blocks import ROOT

STATE: Final = ROOT / "reports" / "state" / "state.json"
_MEANS: Final = {
    Ruling.ACCEPT: (
        "every declared format and exposed output passed, every suite passed at least once, nothing"
        " failed"
    ),
    Ruling.REJECT: "at least one verdict rejects",
    Ruling.ERROR: "the harness broke, the session was cut short, or the call was wrong",
    Ruling.INSUFFICIENT: (
        "nothing rejects, but a format, output or suite has no pass, or no exact value was sharp"
        " enough"
    ),
}
_OPTIONS: Final = {
    "lse": "base of LSE as it is returned, and as a merge takes it; `none`: o alone is returned",
    "empty_lse": "LSE of rows without keys; a merge takes it so, too",
    "empty_out": "o of rows without keys; `unspecified`: not compared",
    "causal_alignment": (
        "`bottom_right`: row i sees keys up to i + s_k - s_q; `top_left`: up to i. Causal problems"
        " of `attention` then have s_q = s_k, `mla_decode` has none"
    ),
    "causal": "whether a function is causal whose signature does not name `causal`",
    "key_heads": "KV heads that it takes: any number, as many as query heads (`all`), or `one`",
    "unused": (
        "what memory of no token holds: `anything` (NaN) or `finite` numbers. Of a cache all slots"
        " past the last token of a request, pages of no request, and slots that no list names; of"
        " a pack rows past the last offset"
    ),
    "sink": "whether a function that names `sink` can be called with None",
    "lse_includes_sink": "whether LSE counts the sink",
    "lse_gradient": "`given`: the backward follows the cotangent of LSE; `none`: of o alone",
    "layout": "`packed`: every call is a pack; `batched`: batches, and packs besides",
    "value_width": "`same`: d_k = d_v alone",
    "d_k": "the one d_k that it takes; any by default",
    "largest_product": (
        "the largest modulus of a product of q and k, before the scale, that it takes: 65504 where"
        " it is stored in fp16. Any by default; larger ones are listed as not tested"
    ),
    "page": "the one page size that it takes; any by default",
    "invalid": (
        "what names nothing: -1 (`negative`), or every int32 number that is no slot (`outside`)"
    ),
    "cache": "rows in the format of q, or of bytes (`fp8`)",
    "scales": "of `fp8`: any fp32 numbers, or `powers` of two",
}
"""By the option of attention."""
_TENSORS: Final = {
    "G": "cumulative log gates of a chunk",
    "Aqk": "scores of q and k, below and on the diagonal, decay and scale in them; with one gate a"
    " head as the product with v_new takes them",
    "Akk": "scores of k and k, below the diagonal, decay and beta in them",
    "factor": "exp(G) and exp(-G), where decays are products of them",
    "q_in, k_in, k_out": "q exp(G), k exp(G), k exp(-G), likewise",
    "R": "the inverse of 1 + Akk",
    "beta_k_wy": "beta k, before its decay",
    "kb": "beta k exp(G), as the product with R takes it",
    "w": "R kb",
    "vb": "beta v, as the product with R takes it",
    "u": "R vb; of the token form the value that a token writes",
    "qg": "q exp(G), as the product with the state takes it",
    "kg": "k exp(G of the last token - G), with which the state is written",
    "k_back": "k exp(-G), from which kg is made, with factors",
    "h": "the state before a chunk, as products take it",
    "M": "of a chunk's map of the state, S -> M S + C, also of joined ones, as products take it",
    "C": "what a map adds, and the state, as products with M take them",
    "v_new": "u - w h",
    "v_decayed": "v_new times its decay, as the product with k takes it",
    "S": "the carried state",
    "residual": "v - S k of a chunk, in the residual form",
    "prediction": "k exp(G) S, with factors",
    "rounded_beta": "beta times the difference of v and the prediction, with factors",
    "o": "the returned o",
    "o_part": "the part of o from within the chunk, with factors",
    "decayed": "the state after its decay",
    "p": "S^T k of a token",
    "dv_local": "dv_new from within the chunk",
    "dAqk, dAkk": "gradients of the scores",
    "dh": "the gradient of h",
    "dv_new": "the gradient of v_new",
    "dS_o": "what o adds to the gradient of the state",
    "dS": "the carried gradient of the state",
    "do_scaled": "do times the scale, before its products",
    "q_decayed": "q times its decay, as the product with do takes it",
    "dq_state, dk_state": "dq and dk of products with the state",
    "dw": "the gradient of w",
    "h_dh": (
        "products of h and dh before their sum, for the gate; of a gate a channel that sum, too"
    ),
    "dG_state, dG_wy": "the gradient of G from the state, from w and u",
    "dG": "the gradient of G",
    "k_decayed": "k exp(G), as the gradient of R takes it",
    "dkb, dvb": "gradients of kb and vb",
    "dbeta_wy, dk_wy": "dbeta and dk from w and u",
    "dR": "the gradient of R",
    "R_dR": "R^T dR",
    "beta_k": "beta k, as a gradient takes it",
    "dq_head, dk_head": "dq and dk of a value head, before the sum over the heads of a group",
    "dq_done, dk_part": "dq of a value head; its dk but for what passes through w and u",
    "kb_gate": "kb where the gradient of the gate reads it",
    "dk_w": "dk through w",
    "P": "the gradient of the state, as products of a token take it",
    "dp": "the gradient of p",
    "dq, dk, dv, dbeta, dg": "the returned gradients",
}
"""By names of tensors of the pipelines of a delta rule."""
_FORMS: Final = {"chunk": "chunk", "scalar decay": "chunk, one gate a head", "recurrent": "token"}


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    names = [*head]
    lines = (names, *([cell(value) for value in row] for row in rows))
    first, *rest = (f"| {' | '.join(line)} |\n" for line in lines)
    return "".join((first, f"|{'---|' * len(names)}\n", *rest))


def cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def code(name: str) -> str:
    return f"`{name}`"


def _exit_codes() -> str:
    found = sorted(Ruling, key=lambda ruling: ruling.exit_code)
    return table(
        ("code", "decision", "means"),
        ((ruling.exit_code, ruling, _MEANS[ruling]) for ruling in found),
    )


def _properties() -> str:
    def about(name: str) -> str:
        suites = (ROOT / "suites" / folder / f"test_{name}.py" for folder in ("kda", "", "general"))
        suite = next(path for path in suites if path.exists())
        return (ast.get_docstring(ast.parse(suite.read_text())) or "").partition("\n\n")[0]

    def section(name: str) -> str:
        law = PROPERTIES[name].law
        return law.section if law else ""

    return table(
        ("suite", "tests", "math"),
        ((code(name), about(name), section(name)) for name in PROPERTIES),
    )


def _laws() -> str:
    rows = ((code(law.name), law.statement, law.section, law.exists_for) for law in LAWS.values())
    return table(("law", "statement", "math", "exists for"), rows)


def _regimes() -> str:
    rows = (
        (axis, code(name), regime.exposes)
        for axis, found in REGIMES.items()
        for name, regime in found.items()
    )
    return table(("axis", "regime", "exposes"), rows)


def _contracts() -> str:
    rows = ((code(name), contract.about) for name, contract in presets().items())
    return table(("contract", "of"), rows)


def _tensors() -> str:
    """What each is, and the forms of contracts that have it."""
    named = {name for names in _TENSORS for name in names.split(", ")}
    every = {name for pipeline in PIPELINES.values() for name in pipeline.names}
    if named != every:
        raise ValueError(f"tensors: without a meaning or a pipeline: {sorted(named ^ every)}")
    return table(
        ("tensor", "is", "of"),
        (
            (
                ", ".join(map(code, names.split(", "))),
                about,
                "; ".join(
                    word
                    for form, word in _FORMS.items()
                    if {*names.split(", ")} & {*PIPELINES[form].names}
                ),
            )
            for names, about in _TENSORS.items()
        ),
    )


def _problem_fields() -> str:
    """Of the problems that `supports` gets."""
    judged = ("kda", *(one.name for one in _function_operators()))
    return table(
        ("op", "fields of a Problem"),
        (
            (code(name), ", ".join(map(code, operator_named(name).problem.model_fields)))
            for name in dict.fromkeys(judged)
        ),
    )


def _attention_keys() -> str:
    """By what each means; the defaults are those of a contract with 16-bit operands."""
    usual = {key: value for key, value, _ in attention_contract("online64-bf16").described()}
    numbers = ((code(name), "a number", about, usual[name]) for name, about in NUMBERS.items())
    words = (
        (
            code(name),
            ", ".join(map(code, values)),
            "; ".join(f"{code(value)}: {about}" for value, about in values.items()),
            code(usual[name]),
        )
        for name, values in WORDS.items()
    )
    tensors = (
        (code(name), "a format", about, _default_format(name)) for name, about in TENSORS.items()
    )
    return table(("key", "values", "meaning", "default"), (*numbers, *words, *tensors))


def _default_format(tensor: str) -> str:
    of = {True: "inputs", False: "operands"}
    return of[tensor in RETURNED] if tensor in NARROW else "sums"


def arguments(docstring: str) -> Iterator[tuple[str, str]]:
    """The names and texts below `Args:`."""
    below = inspect.cleandoc(docstring).partition("\nArgs:\n")[2]
    below = re.split(r"\n(?=\S)", below)[0]
    for entry in re.split(r"\n(?=    \S)", below):
        names, _, text = entry.strip().partition(": ")
        yield names, text


def _decorator() -> str:
    rows = (
        (", ".join(map(code, names.split(", "))), _takers(names.split(", ")[0]), text)
        for names, text in arguments(kdaverify.kernel.__doc__ or "")
    )
    return table(("option", "of", "meaning"), rows)


def _takers(option: str) -> str:
    """The operators whose kernels have an option of the decorator."""
    if option in (*SHARED, "function", "framework", "op"):
        return "all"
    others = [one.name for one in _function_operators() if option in _own_options(one)]
    own = f"; {', '.join(others)} (own values)" if others else ""
    return "all but the delta rule" if option == "own" else f"delta rule{own}"


def _function_operators() -> Iterator[FunctionOperator]:
    found = map(operator_named, OPERATORS)
    return (one for one in found if isinstance(one, FunctionOperator))


def _own_options(operator: FunctionOperator) -> dict[str, str]:
    """The options that an operator has besides those of all, and the values of each."""
    words = {
        name: ", ".join(map(code, values)) if values else ""
        for name, values in operator.words.items()
    }
    return (
        words | dict.fromkeys(operator.numbers, "a number") | dict.fromkeys(operator.functions, "")
    )


def _attention_options() -> str:
    operators = [one for one in _function_operators() if isinstance(one, TolerancesOperator)]
    found = {(name, values): [] for one in operators for name, values in _own_options(one).items()}
    for one in operators:
        for option in _own_options(one).items():
            found[option].append(one.name)
    every = len(operators)
    return table(
        ("option", "values", "of", "meaning"),
        (
            (code(name), values, "all" if len(of) == every else ", ".join(of), _OPTIONS[name])
            for (name, values), of in found.items()
        ),
    )


def _adapters() -> str:
    """By what the module of each says of itself: an import needs a package that may be missing."""
    return table(("name", "adapter"), ((code(name), _about(at)) for name, at in SHIPPED.items()))


def _about(at: str) -> str:
    path = ROOT / f"{at.partition(':')[0].replace('.', '/')}.py"
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]


def _decisions() -> str:
    """Those of the survey: what `reports/state/state.json` holds."""
    state = KernelState.model_validate_json(STATE.read_text(encoding="utf-8"))
    return table(
        ("implementation", "ran", "decision", "cases", "seconds of a core"),
        (
            (
                code(one.implementation),
                one.ran,
                _decision(one),
                f"{one.cases:,}",
                f"{one.seconds:,.0f}",
            )
            for one in state.implementations
        ),
    )


def _decision(one: ImplementationState) -> str:
    if not one.is_rejected:
        return one.decision
    links = ", ".join(
        f"[{name.replace('_', ' ')}](../reports/findings/{name}.md)" for name in one.findings
    )
    return f"**reject**: {links or one.reasons[0]}"


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "adapters": _adapters,
    "decisions": _decisions,
    "exit-codes": _exit_codes,
    "properties": _properties,
    "decorator": _decorator,
    "contracts": _contracts,
    "tensors": _tensors,
    "problem-fields": _problem_fields,
    "attention-keys": _attention_keys,
    "attention-options": _attention_options,
    **{
        mark: lambda head=head, rows=rows: table(head, rows())
        for mark, (head, rows) in {**attention_tables.TABLES, **size_tables.TABLES}.items()
    },
    "regimes": _regimes,
    "probes": lambda: table(
        ("probe", "is", "exposes"),
        ((code(probe.name), probe.about, probe.exposes) for probe in PROBES.values()),
    ),
    "measures": lambda: table(
        ("measure", "is"), ((code(name), ruler.about) for name, ruler in RULERS.items())
    ),
    "laws": _laws,
    "calls": lambda: table(
        ("rule", "relied on", "broken by"),
        ((code(rule.name), rule.about, rule.exposes) for rule in CALL_RULES.values()),
    ),
    "standards": lambda: table(
        ("rule", "requires", "source"),
        ((code(rule.name), rule.criterion, rule.source) for rule in RULES.values()),
    ),
}
