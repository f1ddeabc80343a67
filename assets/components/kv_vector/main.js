/* The numbers of one cell of the KV cache: its K and its V, one small chart per KV head.
 *
 * DATA {meta: {lang, n_kv_heads, head_dim, dtype_bytes, layer, position (from 1), token: [text, hex, special, id], phase: "prefill" | "decode" | null,
 *       pass (from 1) | null, state: "recorded" | "unwritten" | "untraced", rotary, text}, k: float32 (n_kv_heads × head_dim), v: the same}
 */

function bars(s, canvas, values, limit, phase) {
  const { ctx, w, h: height } = fitCanvas(canvas), c = (s.colours ||= palette(s.root)), n = values.length, middle = height / 2, bw = w / n;
  ctx.fillStyle = c.soft; ctx.fillRect(0, 0, w, height);
  ctx.fillStyle = c.edge; ctx.fillRect(0, middle - 0.5, w, 1);
  ctx.fillStyle = phase === "decode" ? c.decode : phase === "prefill" ? c.prefill : c.cache;
  values.forEach((v, i) => {
    const tall = (Math.abs(v) / limit) * (middle - 2);
    ctx.globalAlpha = canvas.at === i ? 1 : 0.8;
    ctx.fillRect(i * bw + 0.5, v > 0 ? middle - tall : middle, Math.max(0.75, bw - 1), tall);
  });
  ctx.globalAlpha = 1;
}

function plot(s, name, head, values, limit) {
  const { m, text, f } = s, canvas = h("canvas", { role: "img" }), length = Math.sqrt(values.reduce((sum, v) => sum + v * v, 0));
  const label = t(text.plot, { kv: name, head: head + 1 }), words = t(text.length, { norm: f.number(length, 2) });
  canvas.setAttribute("aria-label", `${label}, ${words}: ${Array.from(values.slice(0, 8), (v) => f.number(v, 2)).join(", ")} …`);
  canvas.onpointermove = (event) => {
    const i = Math.max(0, Math.min(values.length - 1, Math.floor((event.offsetX / canvas.clientWidth) * values.length)));
    canvas.at = i; bars(s, canvas, values, limit, m.phase);
    s.tip.show(canvas.offsetLeft + event.offsetX, canvas.offsetTop, t(text.value, { kv: name, head: head + 1, i: i + 1, n: values.length, value: f.number(values[i], 4) }));
  };
  canvas.onpointerleave = () => { canvas.at = null; s.tip.hide(); bars(s, canvas, values, limit, m.phase); };
  s.redraw.push(() => bars(s, canvas, values, limit, m.phase));
  return h("figure", { class: "plot" }, h("figcaption", {}, h("b", {}, label), h("span", {}, words)), canvas);
}

function buildVector(root) {
  const s = { root, title: root.querySelector("h2"), where: root.querySelector(".where"), plots: root.querySelector(".plots"), sum: root.querySelector(".sum"), redraw: [] };
  s.tip = tooltip(root);
  watch(root, () => { s.colours = null; s.redraw.forEach((draw) => draw()); });
  return s;
}

export default function (component) {
  const { data, parentElement } = opened(component), s = instance(parentElement, buildVector);
  if (!data?.meta) return;
  const m = data.meta, text = m.text, f = formats(m.lang), size = m.head_dim, [words, hex, special] = m.token;
  Object.assign(s, { m, text, f, colours: null, redraw: [] });
  s.root.setAttribute("aria-label", text.title_aria);
  s.title.replaceChildren(t(text.title, { layer: m.layer, position: m.position }), " ", h("code", {}, showToken(words, hex, { special })));
  s.where.textContent = m.state === "recorded" ? (m.pass ? t(text["written_" + m.phase], { pass: m.pass }) : text.copied) : text[m.state];
  const parts = [["K", column(data.k) ?? []], ["V", column(data.v) ?? []]], shown = Math.min(m.n_kv_heads, 8);
  s.root.style.setProperty("--cols", Math.min(shown, 4));
  s.plots.classList.toggle("scroll", shown > 4);
  const plots = parts.flatMap(([name, all]) => {
    const limit = Math.max(1e-9, ...Array.from(all, Math.abs));
    return all.length ? Array.from({ length: shown }, (_, k) => plot(s, name, k, Array.from(all.slice(k * size, (k + 1) * size)), limit)) : [];
  });
  s.plots.replaceChildren(...plots);
  s.plots.hidden = !plots.length;
  s.sum.textContent = plots.length ? t(text.sum, { values: f.int(2 * m.n_kv_heads * size), dtype_bytes: m.dtype_bytes, bytes: f.int(2 * m.n_kv_heads * size * m.dtype_bytes) }) + (m.rotary ? " " + text.rope : "") + (shown < m.n_kv_heads ? " " + t(text.some_heads, { n: shown, all: m.n_kv_heads }) : "") : "";
  s.redraw.forEach((draw) => draw());
}
