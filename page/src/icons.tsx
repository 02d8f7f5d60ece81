// Small drawings, 16 units wide, in the colour of the text.
import type { SVGAttributes } from "preact";

const drawn = (d: string) => (props: SVGAttributes<SVGSVGElement>) => (
  <svg viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" {...props}>
    <path d={d} />
  </svg>
);

export const Plus = drawn("M8 3v10M3 8h10");
export const Search = drawn("M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9ZM10.5 10.5 14 14");
export const Send = drawn("M8 13V3M4 7l4-4 4 4");
export const Stop = drawn("M4.5 4.5h7v7h-7z");
export const Clip = drawn("M13 7.5 7.8 12.7a3 3 0 0 1-4.3-4.3l5.4-5.3a2 2 0 0 1 2.9 2.8l-5.3 5.3a1 1 0 0 1-1.4-1.4l4.6-4.6");
export const Sliders = drawn("M2 4.5h6M12 4.5h2M2 11.5h2M8 11.5h6M10 2.7a1.8 1.8 0 1 1 0 3.6 1.8 1.8 0 0 1 0-3.6ZM6 9.7a1.8 1.8 0 1 1 0 3.6 1.8 1.8 0 0 1 0-3.6Z");
export const Pencil = drawn("M10.5 3.2 12.8 5.5 5.5 12.8l-3 .7.7-3zM9 4.7 11.3 7");
export const Again = drawn("M13 8a5 5 0 1 1-1.6-3.7M13 2.5v3h-3");
export const CopyIcon = drawn("M5.5 5.5V3h7.5v7.5h-2.5M3 5.5h7.5V13H3z");
export const Check = drawn("M3 8.5 6.5 12 13 4.5");
export const Left = drawn("M10 3.5 5.5 8l4.5 4.5");
export const Right = drawn("M6 3.5 10.5 8 6 12.5");
export const Close = drawn("M4 4l8 8M12 4l-8 8");
export const Bin = drawn("M3 4.5h10M6.5 4.5v-2h3v2M4.5 4.5 5 13.5h6l.5-9M7 7v4M9 7v4");
export const Down = drawn("M8 3v7M4.5 7.5 8 11l3.5-3.5M3 13.5h10");
export const Up = drawn("M8 11V3.5M4.5 7 8 3.5 11.5 7M3 13.5h10");
export const Columns = drawn("M2.5 3h11v10h-11zM8 3v10");
export const Menu = drawn("M2.5 4.5h11M2.5 8h11M2.5 11.5h11");
export const Sun = drawn("M8 10.8a2.8 2.8 0 1 0 0-5.6 2.8 2.8 0 0 0 0 5.6ZM8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M3.4 12.6l.9-.9M11.7 4.3l.9-.9");
export const Moon = drawn("M13 9.6A5.5 5.5 0 0 1 6.4 3 5.5 5.5 0 1 0 13 9.6Z");
export const Half = drawn("M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11");
export const Pin = drawn("M6 2.5h4M6.7 2.5 6 7.2 4 9.5h8L10 7.2l-.7-4.7M8 9.5v4");
export const Tool = drawn("M13.3 4.2a3.3 3.3 0 0 1-4.4 4.2l-4.2 4.3a1.4 1.4 0 0 1-2-2l4.3-4.2a3.3 3.3 0 0 1 4.2-4.4L9.4 4v2.1h2.1z");

export function Mark() {
  return (
    <svg viewBox="0 0 32 32" width="24" height="24" aria-hidden="true" class="mark">
      <rect width="32" height="32" rx="8" />
      <g fill="none" stroke="#fff" stroke-width="2.4" stroke-linecap="round">
        <circle cx="16" cy="16" r="3.2" />
        <path d="M16 12.8V6M19.2 16H26M16 19.2V26M12.8 16H6" />
        <path d="M16 6q4 0 5 3M26 16q0 4-3 5M16 26q-4 0-5-3M6 16q0-4 3-5" opacity=".65" />
      </g>
    </svg>
  );
}
