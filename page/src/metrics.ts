// The server's page of metrics, read, and what follows from two readings: rates, shares of durations.

/** A line of the page. */
export interface Sample {
  labels: Record<string, string>;
  value: number;
}

export type Reading = { at: number; families: Map<string, Sample[]> };

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

export function read(text: string, at: number): Reading {
  const families = new Map<string, Sample[]>();
  for (const line of text.split("\n")) {
    // (What is repeated under other names is passed over.)
    const found = line.startsWith("tokenmill_") ? LINE.exec(line) : null;
    if (!found) continue;
    const labels: Record<string, string> = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) {
      labels[name!] = value!.replace(/\\(.)/g, (_, c: string) => (c === "n" ? "\n" : c));
    }
    const samples = families.get(found[1]!) ?? [];
    samples.push({ labels, value: Number(found[3]) });
    families.set(found[1]!, samples);
  }
  return { at, families };
}

type Labels = Record<string, string>;

const fits = (sample: Sample, labels: Labels) => Object.entries(labels).every(([name, value]) => sample.labels[name] === value);

/** The sum of a family over all that have these labels. */
export function sum(of: Reading | undefined, name: string, labels: Labels = {}): number {
  const samples = of?.families.get(name) ?? [];
  return samples.filter((sample) => fits(sample, labels)).reduce((all, sample) => all + sample.value, 0);
}

export function most(of: Reading | undefined, name: string): number {
  return Math.max(0, ...(of?.families.get(name) ?? []).map((sample) => sample.value));
}

/** How much a counter grew a second. One that is smaller began again: a model was loaded anew. */
export function rate(a: Reading | undefined, b: Reading | undefined, name: string, labels: Labels = {}): number {
  if (!a || !b || b.at <= a.at) return 0;
  return Math.max(0, sum(b, name, labels) - sum(a, name, labels)) / ((b.at - a.at) / 1000);
}

/** A duration that this share of all is not above, between two readings or since the start; seconds, NaN: none. */
export function quantile(a: Reading | undefined, b: Reading | undefined, name: string, share: number): number {
  const bounds = new Map<number, number>();
  const take = (of: Reading | undefined, sign: number) => {
    for (const { labels, value } of of?.families.get(`${name}_bucket`) ?? []) {
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      bounds.set(bound, (bounds.get(bound) ?? 0) + sign * value);
    }
  };
  take(b, 1);
  take(a, -1);
  const sorted = [...bounds].sort((x, y) => x[0] - y[0]);
  const all = sorted.at(-1)?.[1] ?? 0;
  if (all <= 0) return NaN;
  let [before, beforeCount] = [0, 0];
  for (const [bound, count] of sorted) {
    if (count >= share * all) {
      if (bound === Infinity) return before;
      const part = count > beforeCount ? (share * all - beforeCount) / (count - beforeCount) : 1;
      return before + (bound - before) * part;
    }
    [before, beforeCount] = [bound, count];
  }
  return before;
}

/** Values of a label, in order of appearance. */
export function values(of: Reading | undefined, name: string, label: string): string[] {
  return [...new Set((of?.families.get(name) ?? []).map((sample) => sample.labels[label] ?? ""))];
}
