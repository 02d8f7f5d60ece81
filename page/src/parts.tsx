// Small parts that several screens have.
import type { ButtonHTMLAttributes, ComponentChildren, InputHTMLAttributes, TextareaHTMLAttributes } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Check, Close, CopyIcon } from "./icons";

/** Over plain HTTP from another machine browsers give no clipboard: the old way works there. */
async function copy(text: string) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const place = document.createElement("textarea");
  place.value = text;
  document.body.append(place);
  place.select();
  document.execCommand("copy");
  place.remove();
}

export function Icon({ label, children, class: kind, ...rest }: { label: string; children: ComponentChildren } & ButtonHTMLAttributes<HTMLButtonElement>) {
  return (
    <button type="button" class={kind ? `icon ${String(kind)}` : "icon"} aria-label={label} title={label} {...rest}>
      {children}
    </button>
  );
}

export function Copy({ text, what }: { text: string; what: string }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  return (
    <Icon label={done ? "Copied" : `Copy ${what}`} onClick={() => void copy(text).then(() => setDone(true))}>
      {done ? <Check /> : <CopyIcon />}
    </Icon>
  );
}

/** A part of a screen, with what matters most in it. */
export function Card({ title, value, unit, children, wide }: { title: string; value?: ComponentChildren; unit?: string; children?: ComponentChildren; wide?: boolean }) {
  return (
    <section class={wide ? "card wide" : "card"} aria-label={title}>
      <h2>{title}</h2>
      {value === undefined ? null : (
        <p class="value">
          {value} {unit ? <span>{unit}</span> : null}
        </p>
      )}
      {children}
    </section>
  );
}

/** A dialog of the browser's own: Escape closes it, and the keyboard stays inside. */
export function Dialog({ title, onClose, children, closes = true }: { title: string; onClose: () => void; children: ComponentChildren; closes?: boolean }) {
  const place = useRef<HTMLDialogElement>(null);
  useEffect(() => place.current?.showModal(), []);
  return (
    <dialog
      ref={place}
      aria-label={title}
      onCancel={(event) => {
        event.preventDefault();
        if (closes) onClose();
      }}
    >
      <header>
        <h2>{title}</h2>
        {closes ? (
          <Icon label="Close" onClick={onClose}>
            <Close />
          </Icon>
        ) : null}
      </header>
      {children}
    </dialog>
  );
}

/** A field that has the keyboard as soon as it is there. */
export function Focused(props: InputHTMLAttributes<HTMLInputElement>) {
  const place = useRef<HTMLInputElement>(null);
  useEffect(() => place.current?.select(), []);
  return <input ref={place} {...props} />;
}

/** A line of text that grows with what is in it. */
export function Area({ value, onInput, most = 320, ...rest }: { value: string; onInput: (text: string) => void; most?: number } & Omit<TextareaHTMLAttributes<HTMLTextAreaElement>, "value" | "onInput">) {
  const place = useRef<HTMLTextAreaElement>(null);
  // (Browsers heed the attribute only while a page is new.)
  useEffect(() => {
    if (rest.autofocus) place.current?.focus();
  }, []);
  useEffect(() => {
    const area = place.current;
    if (!area) return;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, most)}px`;
  }, [value, most]);
  return <textarea ref={place} rows={1} value={value} onInput={(event) => onInput(event.currentTarget.value)} {...rest} />;
}
