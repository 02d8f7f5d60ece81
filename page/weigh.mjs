// Fails where the built page weighs more than its limit, compressed.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const LIMIT = 400_000;
const folder = join(import.meta.dirname, "../crates/server/page");
let total = 0;
for (const name of readdirSync(folder).sort()) {
  const bytes = readFileSync(join(folder, name));
  const packed = gzipSync(bytes, { level: 9 }).length;
  total += packed;
  console.log(`${name.padEnd(14)} ${String(bytes.length).padStart(8)} B  ${String(packed).padStart(7)} B compressed`);
}
console.log(`all: ${total} B compressed, at most ${LIMIT}`);
process.exit(total <= LIMIT ? 0 : 1);
