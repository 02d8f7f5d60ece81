// Numbers as people read them.

const whole = new Intl.NumberFormat("en");

export const count = (n: number) => whole.format(Math.round(n));

export function bytes(n: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (n >= 1000 && at < units.length - 1) {
    n /= 1000;
    at += 1;
  }
  return `${at === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[at]}`;
}

export function seconds(s: number): string {
  if (!Number.isFinite(s)) return "–";
  if (s === 0) return "0 s";
  if (s < 0.001) return `${(s * 1e6).toFixed(0)} µs`;
  if (s < 1) return `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms`;
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(s % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const rate = (n: number) => (n >= 100 ? count(n) : n.toFixed(1));

export const percent = (part: number, all: number) => (all > 0 ? `${((100 * part) / all).toFixed(0)} %` : "–");

export function ago(at: number): string {
  const days = Math.floor(Date.now() / 86_400_000) - Math.floor(at / 86_400_000);
  if (days <= 0) return new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  if (days === 1) return "yesterday";
  if (days < 7) return `${days} days ago`;
  return new Date(at).toLocaleDateString();
}
