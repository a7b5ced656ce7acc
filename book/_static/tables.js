// Tables in .posenc-table get a filter above them and a sorting button in each header. Without scripts they are complete.

// Names are written with and without hyphens, and with a space before a number or none: "M-RoPE", "llama4".
const plain = (text) =>
  text.toLowerCase().replace(/[-\u2011]/g, "").replace(/’/g, "'").replace(/\s+(?=\d[\d.]*(?![\p{L}\d]))/gu, "");

// Whether a text holds a word: letters anywhere in it, a name with a number only where a word of the text begins.
const finder = (text) => {
  const held = plain(text);
  return (word) => {
    const from = /\d/.test(word) ? new RegExp("(?<![\\p{L}\\d])" + word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "u") : null;
    return from ? from.test(held) : held.includes(word);
  };
};

for (const box of document.querySelectorAll(".posenc-table")) {
  const table = box.querySelector("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const titles = [...table.tHead.rows[0].cells].map((header) => header.textContent.trim());
  // Names of tests and functions may break at their underscores.
  for (const name of table.querySelectorAll("a code, a span, td > a")) {
    if (name.childElementCount || !name.textContent.includes("_")) continue;
    const parts = name.textContent.split(/(?<=_)/);
    name.replaceChildren(...parts.flatMap((part) => [part, document.createElement("wbr")]));
  }
  for (const row of rows) {
    for (const [i, cell] of [...row.cells].entries()) if (i > 2 && cell.textContent.trim()) cell.dataset.label = titles[i];
  }
  const texts = new Map(rows.map((row) => [row, finder([...row.cells].map((cell) => cell.textContent).join(" | "))]));

  const label = document.createElement("label");
  const field = document.createElement("input");
  const count = document.createElement("output");
  field.type = "search";
  label.append("Filter: ", field);
  const bar = document.createElement("p");
  bar.append(label, " ", count);
  box.prepend(bar);
  const filter = () => {
    const words = plain(field.value).split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => texts.get(row)(word));
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
