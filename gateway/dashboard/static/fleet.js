// Puts the fleet's newest state in place as the gateway tells it. Without this script the page has a link to refresh.
"use strict";
{
  const fleet = document.getElementById("fleet");
  const seen = document.getElementById("seen");
  const live = document.getElementById("live");
  let source = null;

  const liveParts = (root) => [...root.querySelectorAll("[data-live]")];
  const keyOf = (part) => `${part.closest("[data-key]").dataset.key}\n${part.dataset.live}`;
  const shape = (root) => [...root.querySelectorAll("[data-key]")].map((each) => each.dataset.key).join("\n");

  function put(html) {
    const next = document.createElement("template");
    next.innerHTML = html;
    if (shape(next.content) !== shape(fleet)) {
      replaceAll(next.content);
      return;
    }
    const news = new Map(liveParts(next.content).map((each) => [keyOf(each), each]));
    for (const part of liveParts(fleet)) {
      const changed = news.get(keyOf(part));
      if (changed && changed.innerHTML !== part.innerHTML) keepingFocus(part, () => part.replaceChildren(...changed.childNodes));
    }
  }

  // Replicas came or went.
  function replaceAll(content) {
    const scrolled = [...fleet.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    keepingFocus(fleet, () => fleet.replaceChildren(...content.childNodes));
    [...fleet.querySelectorAll(".scroll")].forEach((each, i) => { each.scrollLeft = scrolled[i] || 0; });
  }

  function keepingFocus(part, change) {
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const link = focused && focused.getAttribute("href");
    const place = focused && focused.closest("[data-live]");
    const key = place && keyOf(place);
    change();
    if (!focused) return;
    const links = [...part.querySelectorAll("a")];
    const same = links.find((each) => each.getAttribute("href") === link);
    const there = key && liveParts(fleet).find((each) => keyOf(each) === key);
    const target = same || (there && there.querySelector("a"));
    if (target) target.focus({ preventScroll: true });
  }

  function open() {
    source = new EventSource(fleet.dataset.events);
    source.addEventListener("fleet", (event) => put(event.data));
    source.addEventListener("seen", (event) => {
      live.textContent = "Live,";
      seen.textContent = event.data;
    });
    source.addEventListener("error", () => {
      live.textContent = source.readyState === EventSource.CLOSED ? "Not live any more, as of" : "As of";
    });
  }

  // A hidden page needs no connection, of which a browser has few.
  document.addEventListener("visibilitychange", () => {
    if (source) source.close();
    if (!document.hidden) open();
  });
  if (!document.hidden) open();
}
