// Small drawings of numbers: lines over time, and bars of parts.

const WIDE = 240;
const HIGH = 56;

/** The last values of one or two series. */
export function Lines({ series, label, bound }: { series: number[][]; label: string; bound?: number }) {
  const top = Math.max(1e-9, bound ?? 0, ...series.flat()) * 1.08;
  const line = (values: number[]) => {
    const step = WIDE / Math.max(1, 119);
    const from = WIDE - (values.length - 1) * step;
    return values.map((value, at) => `${(from + at * step).toFixed(1)},${(HIGH - (value / top) * (HIGH - 3) - 1).toFixed(1)}`);
  };
  return (
    <svg class="lines" viewBox={`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" role="img" aria-label={label}>
      {bound ? <line class="bound" x1="0" x2={WIDE} y1={HIGH - (bound / top) * (HIGH - 3) - 1} y2={HIGH - (bound / top) * (HIGH - 3) - 1} /> : null}
      {series.map((values, at) => {
        const points = line(values);
        if (points.length < 2) return null;
        return (
          <g class={`line-${at}`}>
            <polygon points={`${points[0]?.split(",")[0]},${HIGH} ${points.join(" ")} ${WIDE},${HIGH}`} />
            <polyline points={points.join(" ")} />
          </g>
        );
      })}
    </svg>
  );
}

export interface Part {
  name: string;
  value: number;
  shown: string;
}

/** Parts of a whole, with their names below. */
export function Parts({ parts, label }: { parts: Part[]; label: string }) {
  const all = parts.reduce((sum, part) => sum + part.value, 0) || 1;
  let x = 0;
  return (
    <div class="parts">
      <svg viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label={`${label}: ${parts.map((part) => `${part.name} ${part.shown}`).join(", ")}`}>
        {parts.map((part, at) => {
          const wide = (100 * part.value) / all;
          x += wide;
          return <rect class={`part-${at}`} x={x - wide} width={wide} height="4" />;
        })}
      </svg>
      <ul>
        {parts.map((part, at) => (
          <li>
            <i class={`part-${at}`} />
            {part.name} <b>{part.shown}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}
