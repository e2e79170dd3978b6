// Read by traceql.sh, which tells what it does: node traceql.mjs FOLDER < QUERIES
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const { parser } = createRequire(join(process.argv[2], "package.json"))("@grafana/lezer-traceql");

// The parser always gives a tree, and marks in it what it had to leave out or to make up.
function faults(query) {
  const found = [];
  parser.parse(query).iterate({
    enter({ type, from, to }) {
      if (type.isError) found.push(`at ${from}: ${query.slice(from, to) || "something is missing"}`);
    },
  });
  return found;
}

console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(faults)));
