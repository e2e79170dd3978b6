// The slowest modules.

import { sumModules, type ModuleRow } from "./aggregate";
import { button, get, make } from "./dom";
import { count, milliseconds, plural, share } from "./format";
import { KINDS } from "./kinds";
import type { State } from "./state";

const SHOWN = 100;

type Order = "label" | "calls" | "self" | "total" | "mean" | "longest";

const HEADS: readonly (readonly [Order, string])[] = [
    ["label", "module"],
    ["calls", "calls"],
    ["self", "self ms"],
    ["total", "total ms"],
    ["mean", "mean ms"],
    ["longest", "longest ms"],
];

export class ModuleTable {
    private order: Order = "self";
    private isRising = false;
    private shown = SHOWN;
    private rows: ModuleRow[] = [];
    private readonly host = get("modules");
    private readonly by = get<HTMLSelectElement>("modules-by");

    /** @param choose Called with a row that is clicked. */
    constructor(
        private readonly state: State,
        private readonly choose: (row: ModuleRow) => void,
    ) {
        this.by.addEventListener("change", () => this.sum());
    }

    /** Sum up what is in scope anew. */
    sum(): void {
        this.rows = sumModules(this.state, this.by.value === "fqn" ? "fqn" : "template");
        this.shown = SHOWN;
        this.draw();
    }

    private valueOf(row: ModuleRow, order: Order): number | string {
        if (order === "mean") return row.total / row.calls;
        if (order === "longest") return this.state.trace.duration[row.longest]!;
        return row[order];
    }

    private sortBy(order: Order): void {
        this.isRising = order === this.order ? !this.isRising : order === "label";
        this.order = order;
        this.draw();
        this.host.querySelector<HTMLElement>(`[data-order=${order}]`)?.focus();
    }

    private draw(): void {
        const way = this.isRising ? 1 : -1;
        this.rows.sort((one, other) => {
            const [a, b] = [this.valueOf(one, this.order), this.valueOf(other, this.order)];
            return a < b ? -way : a > b ? way : one.label < other.label ? -1 : 1;
        });
        const whole = this.rows.reduce((sum, row) => sum + row.self, 0);
        const table = make("table", {}, this.head());
        const body = make("tbody");
        for (const row of this.rows.slice(0, this.shown)) body.append(this.row(row, whole));
        table.append(body);
        this.host.replaceChildren(table);
        const hidden = this.rows.length - this.shown;
        if (hidden > 0) {
            const more = button(`Show ${plural(hidden, "more row")}`, () => {
                this.shown = Infinity;
                this.draw();
            });
            this.host.append(make("p", {}, more));
        }
    }

    private head(): HTMLElement {
        const cells = HEADS.map(([order, text]) => {
            const isSorted = order === this.order;
            const arrow = isSorted ? (this.isRising ? " ▲" : " ▼") : "";
            const sorted = isSorted ? (this.isRising ? "ascending" : "descending") : "none";
            const sort = button(text + arrow, () => this.sortBy(order), { "data-order": order });
            return make("th", { scope: "col", "aria-sort": sorted, class: order }, sort);
        });
        return make("thead", {}, make("tr", {}, ...cells));
    }

    private row(row: ModuleRow, whole: number): HTMLElement {
        const kind = KINDS[row.kind]!;
        const chip = make(
            "span",
            { class: `chip ${kind.word}`, "aria-hidden": "true" },
            kind.letter,
        );
        const jump = button(row.label, () => this.choose(row), {
            title: "Find its calls, and go to the longest",
        });
        const bar = make("meter", {
            max: String(whole || 1),
            value: String(row.self),
            "aria-hidden": "true",
        });
        const cells: (string | Node)[][] = [
            [count(row.calls)],
            [milliseconds(row.self), " ", make("small", {}, share(row.self, whole)), bar],
            [milliseconds(row.total)],
            [milliseconds(row.total / row.calls)],
            [milliseconds(this.state.trace.duration[row.longest]!)],
        ];
        return make(
            "tr",
            {},
            make("td", {}, chip, " ", jump),
            ...cells.map((cell) => make("td", { class: "number" }, ...cell)),
        );
    }
}
