"""How the page of a bench looks in light and dark, and the script that sorts its tables."""

STYLE = """
:root { --ink: #1a1b1e; --quiet: #5d6168; --paper: #fdfdfc; --panel: #f4f4f1; --line: #d9d9d4; --accent: #0072b2;
  --series-0: #0072b2; --series-1: #d55e00; --series-2: #009e73; --series-3: #cc79a7; --series-4: #e69f00; --series-5: #56b4e9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e3; --quiet: #a0a4ab; --paper: #17181b; --panel: #212327; --line: #3a3d43; --accent: #62b5e5;
    --series-0: #4aa3df; --series-1: #f0803c; --series-2: #2fc79b; --series-3: #e29cc4; --series-4: #f2b430; --series-5: #9ad4f5; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 80rem; padding: 1.5rem clamp(1rem, 3vw, 2.5rem) 4rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .8rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: .95rem; font-weight: 600; color: var(--quiet); margin: 1.2rem 0 .4rem; }
header p, .note, figcaption { color: var(--quiet); margin: 0; }
.note, figcaption { font-size: .875rem; margin-top: .5rem; }
figure { margin: 0; }
svg { display: block; width: 100%; height: auto; color: var(--ink); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .8rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { padding-left: .2rem; }
td.number, th.number { text-align: right; }
td.text:nth-child(n+6) { white-space: normal; min-width: 18rem; }
tbody tr:hover { background: var(--panel); }
tfoot td { font-weight: 600; border-bottom: 0; border-top: 2px solid var(--line); }
th button { all: unset; cursor: pointer; font-weight: 600; color: var(--quiet); }
th button:hover, th[aria-sort] button { color: var(--accent); }
th button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
th[aria-sort="ascending"] button::after { content: " \\2191"; }
th[aria-sort="descending"] button::after { content: " \\2193"; }
.interval { color: var(--quiet); font-weight: 400; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--accent); font-size: .95rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: .1rem 2rem; margin: 0; font-size: .875rem; }
dl div { display: flex; gap: .8rem; border-bottom: 1px solid var(--line); padding: .2rem 0; }
dt { color: var(--quiet); flex: 0 0 10rem; }
dd { margin: 0; overflow-wrap: anywhere; }
code { font: .9em ui-monospace, "DejaVu Sans Mono", monospace; }
li { margin: .25rem 0; }
@media print { body { max-width: none; } .scroll { overflow: visible; } }
"""

SCRIPT = """
const scales = { K: 1e3, M: 1e6, G: 1e9, T: 1e12, us: 1e-6, ms: 1e-3, s: 1, m: 60, h: 3600 };
function value(text) {
  text = text.replace(/\\[.*$/, "").trim();
  const parts = [...text.matchAll(/([-+]?[0-9][0-9.]*) ?(us|ms|[KMGTsmh])?(?![a-z])/g)];
  if (!parts.length || !/^[-+0-9]/.test(text)) return text === "-" ? null : text.toLowerCase();
  return parts.reduce((sum, part) => sum + Number(part[1]) * (scales[part[2]] || 1), 0);
}
function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "descending" ||
      (!head.hasAttribute("aria-sort") && head.className === "text") ? 1 : -1;
    const index = [...head.parentElement.children].indexOf(head);
    const rows = [...body.rows].map((row) => [value(row.cells[index].textContent), row]);
    rows.sort((a, b) => a[0] === null || b[0] === null ? compare(a[0], b[0]) : down * compare(a[0], b[0]));
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down === 1 ? "ascending" : "descending");
    body.append(...rows.map((pair) => pair[1]));
  });
}
"""
