// Asking the server, with the key of this tab where it wants one.
import { signal } from "@preact/signals";

const PLACE = "tokenmill.key";

/** The server asked for a key, or did not take the one it got. */
export const keyWanted = signal<"" | "missing" | "wrong">("");
/** Counts up whenever there is another key: what was refused is asked again. */
export const keyCount = signal(0);

export const key = () => sessionStorage.getItem(PLACE) ?? "";

export function setKey(text: string) {
  if (text) sessionStorage.setItem(PLACE, text);
  else sessionStorage.removeItem(PLACE);
  keyWanted.value = "";
  keyCount.value += 1;
}

/** What the server refused, in its words. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string,
  ) {
    super(message);
  }
}

function refusal(status: number, text: string): Refused {
  try {
    const { error } = JSON.parse(text);
    if (typeof error === "string") return new Refused(status, error, "");
    if (error?.message) return new Refused(status, error.message, error.code ?? "");
  } catch {
    // No JSON: what stands between is not this server.
  }
  return new Refused(status, `the server answered ${status}`, "");
}

interface Asking {
  method?: string;
  body?: unknown;
  signal?: AbortSignal;
}

/** Asks; what is not answered well is thrown as `Refused`. */
export async function ask(path: string, { method, body, signal }: Asking = {}): Promise<Response> {
  const headers: Record<string, string> = {};
  if (key()) headers.authorization = `Bearer ${key()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(path, {
      method: method ?? (body === undefined ? "GET" : "POST"),
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "the server does not answer: is it still running?", "unreachable");
  }
  if (response.ok) return response;
  const refused = refusal(response.status, await response.text());
  if (response.status === 401) keyWanted.value = key() ? "wrong" : "missing";
  throw refused;
}

export async function json<T>(path: string, asking?: Asking): Promise<T> {
  return (await ask(path, asking)).json() as Promise<T>;
}

/** Lines as they come. */
export async function* lines(response: Response): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop() ?? "";
    yield* parts;
  }
  if (rest) yield rest;
}

/** Data of server-sent events, read as JSON, up to `[DONE]`. */
export async function* events(response: Response): AsyncGenerator<Record<string, any>> {
  for await (const line of lines(response)) {
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    yield JSON.parse(data);
  }
}

export const wordsOf = (error: unknown) => (error instanceof Error ? error.message : String(error));
