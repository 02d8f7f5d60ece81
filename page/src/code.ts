// Colours for code: a tree of words and their kinds, of the languages that models write most.
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import kotlin from "highlight.js/lib/languages/kotlin";
import lua from "highlight.js/lib/languages/lua";
import makefile from "highlight.js/lib/languages/makefile";
import markdown from "highlight.js/lib/languages/markdown";
import php from "highlight.js/lib/languages/php";
import python from "highlight.js/lib/languages/python";
import r from "highlight.js/lib/languages/r";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import scss from "highlight.js/lib/languages/scss";
import shell from "highlight.js/lib/languages/shell";
import sql from "highlight.js/lib/languages/sql";
import swift from "highlight.js/lib/languages/swift";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { createLowlight } from "lowlight";

const painter = createLowlight({
  bash, c, cpp, csharp, css, diff, go, ini, java, javascript, json, kotlin, lua, makefile, markdown, php, python, r, ruby, rust, scss, shell,
  sql, swift, typescript, xml, yaml,
});

/** A word, or words of a kind. */
export type Painted = string | { kind: string; of: Painted[] };

type Node = ReturnType<typeof painter.highlight>["children"][number];

const painted = (node: Node): Painted => {
  if (node.type === "text") return node.value;
  if (node.type !== "element") return "";
  return { kind: ((node.properties.className as string[] | undefined) ?? []).join(" "), of: (node.children as Node[]).map(painted) };
};

/** The code with its kinds; as it is where nobody knows the language. */
export function paint(code: string, language: string): Painted[] {
  if (!painter.registered(language)) return [code];
  return painter.highlight(language, code).children.map(painted);
}
