// The page: a chat, what the server does, and its models. It asks only the server that it is from.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { runs, stopAll } from "./answers";
import { keyCount } from "./api";
import "./app.css";
import { Chat } from "./chat";
import { historyShown, searchWanted } from "./history";
import { Half, Mark, Moon, Sun } from "./icons";
import { KeyDialog } from "./key";
import { Live, useMetrics } from "./live";
import { Models } from "./models";
import { panelShown } from "./panel";
import { Dialog, Icon } from "./parts";
import { latest, newChat, readHistory, readModels, save, tab, type Theme, theme, undo } from "./state";

const TABS = [
  ["chat", "#/", "Chat"],
  ["live", "#/live", "Live"],
  ["models", "#/models", "Models"],
] as const;

const THEMES: Theme[] = ["system", "light", "dark"];

const KEYS = [
  ["Ctrl K", "Search chats"],
  ["Ctrl Shift O", "New chat"],
  ["Ctrl ,", "Settings of the chat"],
  ["Esc", "Stop the answer, close a dialog"],
  ["Enter", "Send; Shift Enter begins a line"],
  ["Ctrl /", "These keys"],
] as const;

/** How often a list of models that cannot be had is asked for again. */
const AGAIN_MS = 3000;

function Bar() {
  const next = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]!;
  return (
    <header class="bar">
      <a class="brand" href="#/" aria-label="tokenmill">
        <Mark /> <span>tokenmill</span>
      </a>
      <nav aria-label="Screens">
        {TABS.map(([id, href, words]) => (
          <a key={id} href={href} aria-current={tab.value === id ? "page" : undefined}>
            {words}
          </a>
        ))}
      </nav>
      <span class="grow" />
      <Icon label={`Colours: ${theme.value}. Change to ${next}`} onClick={() => (theme.value = next)}>
        {theme.value === "light" ? <Sun /> : theme.value === "dark" ? <Moon /> : <Half />}
      </Icon>
    </header>
  );
}

function Undo() {
  const shown = undo.value;
  useEffect(() => {
    if (!shown) return;
    const timer = setTimeout(() => (undo.value = null), 8000);
    return () => clearTimeout(timer);
  }, [shown]);
  return (
    <div class="toast" role="status">
      {shown ? (
        <p>
          {shown.words}
          <button type="button" class="link" onClick={() => (shown.act(), (undo.value = null))}>
            Undo
          </button>
        </p>
      ) : null}
    </div>
  );
}

function App() {
  const [help, setHelp] = useState(false);
  useMetrics(tab.value === "live");
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const ctrl = event.ctrlKey || event.metaKey;
      const act =
        ctrl && event.key === "k" ? () => ((location.hash = tab.value === "chat" ? location.hash : "#/"), (historyShown.value = true), (searchWanted.value += 1))
        : ctrl && event.shiftKey && event.key.toLowerCase() === "o" ? newChat
        : ctrl && event.key === "," ? () => (panelShown.value = !panelShown.value)
        : ctrl && event.key === "/" ? () => setHelp(true)
        : event.key === "Escape" && !document.querySelector("dialog[open]") ? () => (historyShown.value = false, stopAll(Object.keys(runs.value)))
        : null;
      if (!act) return;
      if (ctrl) event.preventDefault();
      act();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  useEffect(() => {
    let timer = 0;
    const look = () =>
      readModels().catch(() => {
        timer = window.setTimeout(look, AGAIN_MS);
      });
    void look();
    return () => clearTimeout(timer);
  }, [keyCount.value]);
  return (
    <>
      <Bar />
      {tab.value === "live" ? <Live /> : tab.value === "models" ? <Models /> : <Chat />}
      <Undo />
      <KeyDialog />
      {help ? (
        <Dialog title="Keys" onClose={() => setHelp(false)}>
          <dl class="keys">
            {KEYS.map(([keys, words]) => (
              <div key={keys}>
                <dt>
                  <kbd>{keys}</kbd>
                </dt>
                <dd>{words}</dd>
              </div>
            ))}
          </dl>
          <p class="quiet">
            <a href={`${import.meta.env.BASE_URL}licences.txt`} target="_blank" rel="noopener">
              Licences of what this page is made of
            </a>
          </p>
        </Dialog>
      ) : null}
    </>
  );
}

// What is on its way when the page goes is kept as far as it came.
addEventListener("pagehide", () => {
  if (Object.keys(runs.value).length === 0) return;
  const id = /#\/chat\/(\w+)/.exec(location.hash)?.[1];
  const one = id && latest(id);
  if (one) void save(one);
});

const place = document.getElementById("page")!;
void readHistory().then(() => {
  place.replaceChildren();
  render(<App />, place);
});
