const form = document.querySelector("form"), rows = [...document.querySelectorAll("tbody tr")];
const chosen = (name) => form.elements[name].value;
function show() {
  const task = chosen("task"), most = Number(chosen("params")) || Infinity;
  let count = 0;
  for (const row of rows) {
    const { method, family, params, tasks } = row.dataset;
    row.hidden = (chosen("method") && method !== chosen("method")) ||
      (chosen("family") && family !== chosen("family")) || Number(params) > most ||
      (task && !tasks.split(" ").includes(task));
    count += row.hidden ? 0 : 1;
  }
  for (const cell of document.querySelectorAll("[data-task]"))
    cell.hidden = Boolean(task) && cell.dataset.task !== task;
  const figures = [...document.querySelectorAll("figure")];
  figures.forEach((figure, index) => { figure.hidden = task ? figure.dataset.of !== task : index > 1; });
  for (const point of document.querySelectorAll("[data-row]"))
    point.classList.toggle("off", rows[Number(point.dataset.row)].hidden);
  document.querySelector("output").textContent = `${count} of ${rows.length} sizes`;
}
form.addEventListener("input", show);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(show));
for (const button of document.querySelectorAll("td button")) {
  button.addEventListener("click", async () => {
    const text = button.nextElementSibling;
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(text);
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}
for (const point of document.querySelectorAll("[data-row]")) {
  point.addEventListener("click", () => {
    for (const row of rows) row.classList.toggle("marked", row === rows[Number(point.dataset.row)]);
    rows[Number(point.dataset.row)].scrollIntoView({ block: "center" });
  });
}
form.hidden = false;
show();
