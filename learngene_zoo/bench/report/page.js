const scales = { K: 1e3, M: 1e6, G: 1e9, T: 1e12, us: 1e-6, ms: 1e-3, s: 1, m: 60, h: 3600 };
function value(text) {
  text = text.replace(/[[(].*$/, "").trim();
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
