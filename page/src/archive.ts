// Conversations in the browser's own database. They leave it only as a file that a person saves.
import type { Conversation } from "./types";

const STORE = "conversations";

let opened: Promise<IDBDatabase> | undefined;

function database(): Promise<IDBDatabase> {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("tokenmill", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

async function store<T>(mode: IDBTransactionMode, act: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const within = (await database()).transaction(STORE, mode);
  const request = act(within.objectStore(STORE));
  return new Promise((resolve, reject) => {
    within.oncomplete = () => resolve(request.result);
    within.onabort = within.onerror = () => reject(within.error ?? request.error);
  });
}

export const all = () => store<Conversation[]>("readonly", (kept) => kept.getAll());
export const keep = (one: Conversation) => store("readwrite", (kept) => kept.put(one));
export const forget = (id: string) => store("readwrite", (kept) => kept.delete(id));
