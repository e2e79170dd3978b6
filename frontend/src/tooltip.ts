// What is under the pointer, in a few words beside it.

import { get, make } from "./dom";
import type { Point } from "./chart";

/** Show lines near a point of a host element; hide it without lines. */
export function tooltip(host: HTMLElement, at: Point, lines: readonly string[]): void {
    const tip = get("tooltip");
    tip.hidden = lines.length === 0;
    if (tip.hidden) return;
    tip.replaceChildren(
        ...lines.map((line, index) => make("div", { class: index ? "" : "title" }, line)),
    );
    const box = host.getBoundingClientRect();
    const x = Math.min(box.left + at.x + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = box.top + at.y + 18;
    const fits = below + tip.offsetHeight < window.innerHeight - 8;
    tip.style.left = `${Math.max(8, x)}px`;
    tip.style.top = `${fits ? below : box.top + at.y - tip.offsetHeight - 12}px`;
}
