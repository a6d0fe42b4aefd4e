// Shows the row of the table behind a chart that belongs to the pointer. The page works without this script.
for (const figure of document.querySelectorAll("figure")) {
  const tip = figure.appendChild(Object.assign(document.createElement("div"), { className: "tip", hidden: true }));
  const names = [...figure.querySelectorAll("th")].map((one) => one.textContent);
  const hide = () => {
    tip.hidden = true;
    for (const one of figure.querySelectorAll(".cursor")) one.hidden = true;
  };
  const show = (number, x, y) => {
    const row = figure.querySelector(`tr[data-n="${number}"]`);
    if (!row) return hide();
    tip.replaceChildren(...[...row.cells].map((cell, n) => {
      const line = document.createElement(n ? "div" : "b");
      line.textContent = n ? `${names[n]}: ${cell.textContent}` : cell.textContent;
      return line;
    }));
    tip.hidden = false;
    const room = figure.getBoundingClientRect();
    const left = x - room.left + 14;
    tip.style.left = `${Math.max(0, left + tip.offsetWidth > room.width ? x - room.left - tip.offsetWidth - 14 : left)}px`;
    tip.style.top = `${y - room.top + 14}px`;
  };
  for (const plot of figure.querySelectorAll(".plot")) {
    const count = Number(plot.dataset.count);
    let place = 0;
    const point = (number, y) => {
      place = Math.min(count - 1, Math.max(0, number));
      const room = plot.querySelector(".marks").getBoundingClientRect();
      const x = room.left + ((place + 0.5) / count) * room.width;
      for (const one of figure.querySelectorAll(".cursor")) {
        one.hidden = false;
        one.style.left = `${x - plot.getBoundingClientRect().left}px`;
      }
      show(place, x, y ?? room.top);
    };
    plot.addEventListener("pointermove", (event) => {
      const room = plot.querySelector(".marks").getBoundingClientRect();
      const share = (event.clientX - room.left) / room.width;
      if (count && share >= 0 && share < 1) point(Math.floor(share * count), event.clientY);
      else hide();
    });
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") hide();
      if (!count || !step) return;
      event.preventDefault();
      point(place + step);
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
  }
  for (const bar of figure.querySelectorAll(".bars li")) {
    bar.addEventListener("pointermove", (event) => show(bar.dataset.n, event.clientX, event.clientY));
    bar.addEventListener("pointerleave", hide);
  }
}
