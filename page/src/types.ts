// What is kept of conversations and what the server tells.

/** A file that goes with a message, as text. */
export interface FileText {
  name: string;
  text: string;
}

/** An image that goes with a message. */
export interface Picture {
  name: string;
  /** Its file, as a data URL. */
  url: string;
}

/** A call of a tool that a model wrote. */
export interface Call {
  id: string;
  name: string;
  /** JSON as the model wrote it. */
  args: string;
}

/** Why a prompt was not found in the cache, as the server says it. */
export interface Miss {
  type: string;
  token_offset?: number;
  cached_text?: string;
  prompt_text?: string;
}

/** What an answer took. */
export interface Figures {
  prompt: number;
  cached: number;
  tokens: number;
  reasoning: number;
  /** From asking to the first token, seconds. */
  first_s: number;
  /** From the first token to the last, seconds. */
  rest_s: number;
  miss?: Miss | null;
}

/** A message: a node of a conversation's tree. */
export interface Turn {
  id: string;
  parent: string | null;
  role: "user" | "assistant" | "tool";
  text: string;
  at: number;
  files?: FileText[];
  images?: Picture[];
  reasoning?: string;
  calls?: Call[];
  /** Of a tool's result: the call that it answers. */
  call?: { id: string; name: string };
  model?: string;
  /** `stop`, `length`, `tool_calls`, `stopped` by the user, `error`. */
  end?: string;
  error?: string;
  warnings?: string[];
  figures?: Figures;
}

/** How answers are asked for. Empty texts ask for nothing: the server's own value holds. */
export interface Settings {
  system: string;
  schema: string;
  tools: string;
  /** `required`, `none`; empty: the model decides. */
  toolChoice: string;
  sampling: Record<string, string>;
}

/** A place where a conversation is read: a model, and the message that it ends with. */
export interface Pane {
  model: string;
  leaf: string | null;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  changed: number;
  turns: Record<string, Turn>;
  panes: Pane[];
  settings: Settings;
}

/** Where a model is, as `/v1/models` tells it. */
export interface Status {
  value: "unloaded" | "loading" | "loaded" | "unloading";
  bytes?: number;
  pinned?: boolean;
  expires_at?: number;
  failed?: boolean;
  reason?: string;
  failed_at?: number;
}

export interface Model {
  id: string;
  aliases: string[];
  root: string;
  status: Status;
  max_model_len?: number;
  /** What its messages may have, as far as that is known: `text`, `image`. */
  input_modalities?: string[];
  defaults?: Record<string, unknown>;
}
