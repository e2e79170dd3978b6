// Elements, made so that no text is ever read as markup.

type Child = Node | string | null;

/** Find what page.html has. */
export function get<T extends HTMLElement = HTMLElement>(id: string): T {
    return document.getElementById(id) as T;
}

/** Make an element. Attributes and texts are set as they are. */
export function make<K extends keyof HTMLElementTagNameMap>(
    tag: K,
    attributes: Record<string, string> = {},
    ...children: Child[]
): HTMLElementTagNameMap[K] {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children.filter((child) => child !== null));
    return element;
}

/** Make a button. */
export function button(text: string, act: () => void, attributes: Record<string, string> = {}) {
    const element = make("button", { type: "button", ...attributes }, text);
    element.addEventListener("click", act);
    return element;
}
