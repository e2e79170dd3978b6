// Takes the page's data, and shows it.

import { App } from "./app";
import { unpack } from "./binary";
import { connect } from "./controls";
import { get } from "./dom";
import { showHead } from "./head";
import { search } from "./search";
import { follow } from "./shown";
import { makeSplitter } from "./splitter";
import { AXIS } from "./timeline";
import { Trace } from "./trace";
import { publish } from "./window";

async function main(): Promise<void> {
    const data = get("data");
    const app = new App(new Trace(await unpack(data.textContent!)));
    data.remove(); // millions of characters
    follow(app);
    connect(app);
    makeSplitter(app.timeline.lanes.height + 2 * AXIS);
    showHead(app.state, () => app.goFailed());
    app.setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    app.state.tell("selected");
    app.state.tell("scope");
    search(app.state, "");
    app.chart.fit();
    publish(app);
    document.documentElement.dataset["ready"] = "true";
}

void main();
