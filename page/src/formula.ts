// Formulas as MathML, which browsers draw themselves. Nodes are built one by one, never from a text.
import temml from "temml";

/** Writes a formula into an element; one that cannot be read is shown as it was written. */
export function formula(element: HTMLElement, tex: string, displayMode: boolean) {
  try {
    temml.render(tex, element, { displayMode, throwOnError: true, trust: false, maxExpand: 200, maxSize: [20, 500], annotate: false });
  } catch {
    element.textContent = tex;
  }
}
