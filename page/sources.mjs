// What the page is built from, and the digest of it: file names and contents, in order. The server's test
// computes the same (tests/http/tests/page.rs).
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const root = import.meta.dirname;
const alone = ["index.html", "package-lock.json", "package.json", "sources.mjs", "tsconfig.json", "vite.config.ts"];

/** Names of all sources, relative to this folder, sorted by their bytes. */
export function sources() {
  const inside = readdirSync(join(root, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(root.length + 1));
  return [...alone, ...inside].sort();
}

/** The first 16 hexadecimal digits of their SHA-256. */
export function digest() {
  const hash = createHash("sha256");
  for (const name of sources()) {
    const bytes = readFileSync(join(root, name));
    hash.update(`${name}\n${bytes.length}\n`).update(bytes);
  }
  return hash.digest("hex").slice(0, 16);
}
