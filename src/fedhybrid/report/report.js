"use strict";
// What a point says of itself is shown beside it, on hover and on focus. Arrow keys go from point to point within one picture.
(() => {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true"); // the point's own label is what is read out
  document.body.append(tip);
  let shown = null;

  const hide = () => {
    tip.hidden = true;
    if (shown !== null) shown.classList.remove("shown");
    shown = null;
  };
  const show = (point) => {
    hide();
    shown = point;
    point.classList.add("shown");
    tip.textContent = point.getAttribute("aria-label");
    tip.hidden = false;
    const anchor = (point.querySelector(".dot") ?? point.querySelector(".filled") ?? point).getBoundingClientRect();
    const box = tip.getBoundingClientRect();
    const across = anchor.left + anchor.width / 2 - box.width / 2;
    const above = anchor.top - box.height - 8;
    tip.style.left = Math.max(8, Math.min(across, document.documentElement.clientWidth - box.width - 8)) + "px";
    tip.style.top = (above >= 4 ? above : anchor.bottom + 8) + "px";
  };
  const pointOf = (event) => (event.target instanceof Element ? event.target.closest(".point") : null);

  document.addEventListener("pointerover", (event) => {
    const point = pointOf(event);
    if (point !== null) show(point);
    else if (shown !== null && shown !== document.activeElement) hide();
  });
  document.addEventListener("focusin", (event) => {
    const point = pointOf(event);
    if (point !== null) show(point);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { capture: true, passive: true });

  // One stop for the tabulator key in each picture.
  const groups = [...document.querySelectorAll("table, .chart")].map((group) => [...group.querySelectorAll(".point")]);
  for (const points of groups) {
    points.forEach((point, place) => point.setAttribute("tabindex", place === 0 ? "0" : "-1"));
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const point = pointOf(event);
    if (by === undefined || point === null) return;
    const points = groups.find((group) => group.includes(point));
    const next = points[points.indexOf(point) + by];
    if (next === undefined) return;
    event.preventDefault();
    point.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
})();
