// Runs Perfetto's own trace processor, which is built for the web, in Node.
//
//   node trace_processor.mjs FOLDER
//
// Its messages (TraceProcessorRpcStream, as bytes) come on stdin and go to stdout. FOLDER is that of
// Perfetto's page, with engine_bundle.js and trace_processor.wasm. The engine expects to be a worker
// of that page, so what it uses of one stands here.

import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import vm from "node:vm";

const { argv, stdin, stdout } = process;
const folder = argv[2];

class FileRequest {
  open(_method, url) {
    this.url = url;
  }

  send() {
    this.status = 200;
    this.response = readFileSync(join(folder, basename(this.url)));
  }
}

globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.XMLHttpRequest = FileRequest;
Object.defineProperty(globalThis, "location", { value: { href: "http://page/engine_bundle.js" } });
delete globalThis.process; // it was not built for Node, and does not look further
console.log = console.warn = console.error; // stdout is for messages

vm.runInThisContext(readFileSync(join(folder, "engine_bundle.js"), "utf8"));
const { port1, port2 } = new MessageChannel();
globalThis.onmessage({ data: port2 });
port1.onmessage = (message) => stdout.write(message.data);
// What the engine does to be ready is waiting already.
setTimeout(() => {
  stdin.on("data", (bytes) => port1.postMessage(new Uint8Array(bytes)));
  stdin.on("end", () => port1.close());
}, 100);
