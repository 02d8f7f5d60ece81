// Asks for the key where the server wants one. It stays in this tab, and goes when the tab is closed.
import { useState } from "preact/hooks";
import { keyWanted, setKey } from "./api";
import { Dialog } from "./parts";

export function KeyDialog() {
  const [text, setText] = useState("");
  if (!keyWanted.value) return null;
  return (
    <Dialog title="This server asks for a key" onClose={() => undefined} closes={false}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setKey(text.trim());
          setText("");
        }}
      >
        <p class="quiet">
          Whoever runs it has one (<code>tokenmill key add NAME</code>). It is kept in this tab only, and goes when you close it.
        </p>
        <label class="field">
          <span>Key</span>
          <input type="password" autocomplete="off" value={text} onInput={(event) => setText(event.currentTarget.value)} autofocus required />
        </label>
        {keyWanted.value === "wrong" ? <p class="bad" role="alert">The server does not take this key.</p> : null}
        <div class="row end">
          <button type="submit" class="main">
            Use this key
          </button>
        </div>
      </form>
    </Dialog>
  );
}
