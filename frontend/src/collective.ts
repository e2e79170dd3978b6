// What a collective's event says, in one line.

import { bytes } from "./format";

// What torch calls the groups that nobody named.
export const UNNAMED = ["", "default_pg", "undefined"];

/** `all_reduce x2 258.0 KiB (mesh_tp)`. */
export function tellCollective(attributes: Record<string, unknown>): string {
    const get = (name: string) => attributes[`modtrack.collective.${name}`];
    const count = Number(get("count") ?? 1);
    const size = Number(get("size") ?? 0);
    const description = String(get("group.description") ?? "");
    const group = UNNAMED.includes(description) ? "" : description;
    return [
        String(get("operation") ?? "collective"),
        count > 1 ? `x${count}` : "",
        size > 0 ? bytes(size) : "",
        group ? `(${group})` : "",
    ]
        .filter(Boolean)
        .join(" ");
}
