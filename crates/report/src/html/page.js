// What the charts say under the pointer. The page is complete without this.
for (const figure of document.querySelectorAll(".hoverable")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const svg = figure.querySelector("svg");
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  figure.append(tip);
  const cursor = document.createElementNS(svg.namespaceURI, "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", data.y[0]);
  cursor.setAttribute("y2", data.y[1]);
  cursor.style.display = "none";
  svg.append(cursor);
  const nearest = (at, x) => {
    let low = 0, high = at.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (at[middle] < x) low = middle + 1; else high = middle;
    }
    return low > 0 && x - at[low - 1] < at[low] - x ? low - 1 : low;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * data.width * 10;
    const head = nearest(data.heads.at, x);
    if (head < 0 || !data.heads.at.length) return;
    const at = data.heads.at[head];
    cursor.setAttribute("x1", at / 10);
    cursor.setAttribute("x2", at / 10);
    cursor.style.display = "";
    tip.replaceChildren();
    const title = document.createElement("b");
    title.textContent = data.heads.text[head];
    tip.append(title);
    for (const lane of data.series) {
      if (!lane.at.length) continue;
      const line = document.createElement("div");
      const colour = document.createElement("i");
      colour.className = lane.class;
      line.append(colour, lane.name + "  " + lane.text[nearest(lane.at, at)]);
      tip.append(line);
    }
    tip.hidden = false;
    const frame = figure.getBoundingClientRect();
    const left = box.left - frame.left + at / 10 / data.width * box.width;
    const right = left + 14 + tip.offsetWidth > frame.width;
    tip.style.left = (right ? Math.max(4, left - 14 - tip.offsetWidth) : left + 14) + "px";
    tip.style.top = event.clientY - frame.top + 12 + "px";
  });
  svg.addEventListener("pointerleave", () => {
    tip.hidden = true;
    cursor.style.display = "none";
  });
}
