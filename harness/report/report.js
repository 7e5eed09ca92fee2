// Tooltips that also work by touch: the <title> of the mark under the pointer, shown at once.
(() => {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const words = new WeakMap();
  for (const title of document.querySelectorAll("svg title")) {
    const mark = title.parentElement;
    if (mark.tagName === "svg") continue;
    words.set(mark, title.textContent);
    title.remove(); // otherwise the browser shows it a second time
  }
  const find = (node) => {
    while (node && node.nodeType === 1 && !words.has(node)) node = node.parentElement;
    return node ? words.get(node) : undefined;
  };
  const show = (event) => {
    const text = find(event.target);
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 12, innerWidth - box.width - 8);
    const above = event.clientY + 16 + box.height > innerHeight;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (above ? event.clientY - box.height - 10 : event.clientY + 16) + "px";
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
  addEventListener("beforeprint", () => { for (const box of document.querySelectorAll("details")) box.open = true; });
})();
