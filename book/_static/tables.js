// Tables in .posenc-table get a filter above them and a sorting button in each header. Without scripts they are complete.
for (const box of document.querySelectorAll(".posenc-table")) {
  const table = box.querySelector("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];

  const label = document.createElement("label");
  const field = document.createElement("input");
  const count = document.createElement("output");
  field.type = "search";
  label.append("Filter: ", field);
  const bar = document.createElement("p");
  bar.append(label, " ", count);
  box.prepend(bar);
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  field.addEventListener("input", filter);
  filter(); // a browser keeps what was typed when a page is loaded again

  const { compare } = new Intl.Collator("en", { numeric: true });
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const up = header.getAttribute("aria-sort") !== "ascending";
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].textContent.trim();
      // Empty cells stay at the end, whichever way the others run.
      rows.sort((a, b) => !key(a) - !key(b) || (up ? 1 : -1) * compare(key(a), key(b)));
      body.append(...rows);
    });
  });
}
