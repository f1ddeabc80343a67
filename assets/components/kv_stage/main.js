/* The KV cache of one run: layers × positions, filled pass by pass.
 *
 * DATA (built by pages/views/kv_cache_data.py)
 * {
 *   meta: {
 *     run, lang, n_layers, n_heads, n_kv_heads, head_dim, dtype_bytes, dtype,
 *     n_prompt, n_traced,                  positions with recorded K and V (the first ones)
 *     tokens: [[text, hex, special, id]],  prompt then chosen
 *     steps: [[phase, n_cached_before, n_input, token_index, start_ms, end_ms]]     phase "prefill" | "decode"; token_index or null
 *     scale: [k, v],                       norm = code × scale
 *     measured: {bytes, kind, tensors} | null,   bytes that the cache holds after the last pass, how we know, and the text key that says so
 *     view: {step, kv, head, cell},        where to start: finished passes or null = end; "k" | "v"; 0 = all heads, 1…; [layer, position] from 0
 *     text
 *   },
 *   norms: uint16 (2 × n_kv_heads × n_layers × n_traced), K then V: length of each vector
 *   layer_ms: float32 (n_steps × (n_layers + 1)), when each layer began and the last one ended, from the start of its pass
 * }
 * Sends setStateValue("view", {step, kv, head, cell, seq}) when the learner has decided on something.
 */

const MANY = 6000; // cells
const GUTTER = 2.25, FOOT = 1.5, LABELS = 6.25; // rem around the grid: layer names, phase bar, token names

/** P1, P2, … for the prompt; A, B, … Z, AA, AB, … for what was chosen. */
function positionName(m, j) {
  if (j < m.n_prompt) return "P" + (j + 1);
  let k = j - m.n_prompt, name = "";
  do { name = String.fromCharCode(65 + (k % 26)) + name; k = Math.floor(k / 26) - 1; } while (k >= 0);
  return name;
}

function rangeName(m, from, to) {
  if (to <= from) return "–";
  const span = (a, b) => (b - a === 1 ? positionName(m, a) : positionName(m, a) + "–" + positionName(m, b - 1));
  const cut = Math.min(Math.max(m.n_prompt, from), to), parts = [];
  if (cut > from) parts.push(span(from, cut));
  if (to > cut) parts.push(span(cut, to));
  return parts.join(", ");
}

function stepOf(m, i) {
  const s = m.steps[i];
  return s && { phase: s[0], before: s[1], n: s[2], after: s[1] + s[2], token: s[3], start: s[4], end: s[5] };
}

function cachedAt(m, position) { return position ? stepOf(m, position - 1).after : m.steps.length ? stepOf(m, 0).before : 0; }

/** The pass that wrote position j, or -1 (copied from another run, or never written). */
function writer(m, j) { return m.steps.findIndex((s) => j >= s[1] && j < s[1] + s[2]); }

function token(m, j) { const [text, hex, special, id] = m.tokens[j]; return { text, hex, special, id }; }
function tokenText(m, j) { const k = token(m, j); return showToken(k.text, k.hex, k); }

/** Length of the K or V vector of one cell: one head, or all heads of the layer taken together. */
function norm(s, kv, head, layer, j) {
  const m = s.m, plane = m.n_layers * m.n_traced, at = layer * m.n_traced + j, base = (kv === "v" ? m.n_kv_heads : 0) * plane, scale = m.scale[kv === "v" ? 1 : 0];
  if (head) return s.norms[base + (head - 1) * plane + at] * scale;
  let sum = 0;
  for (let h = 0; h < m.n_kv_heads; h++) sum += (s.norms[base + h * plane + at] * scale) ** 2;
  return Math.sqrt(sum);
}

/** All norms of the chosen view, as shades 0…1 between its 1st and 99th percentile, and that range. */
function shades(s) {
  const m = s.m, key = s.view.kv + s.view.head;
  if (s.shadeKey === key) return s.shade;
  const values = new Float32Array(m.n_layers * m.n_traced);
  for (let l = 0, i = 0; l < m.n_layers; l++) for (let j = 0; j < m.n_traced; j++) values[i++] = norm(s, s.view.kv, s.view.head, l, j);
  const sorted = Float32Array.from(values).sort(), low = sorted[Math.floor(sorted.length * 0.01)] ?? 0, high = sorted[Math.floor((sorted.length - 1) * 0.99)] ?? 1;
  const alpha = values.map((v) => 0.16 + 0.84 * Math.max(0, Math.min(1, (v - low) / Math.max(1e-9, high - low))));
  s.shadeKey = key;
  return (s.shade = { alpha, low, high });
}

function buildKv(root) {
  const q = (selector) => root.querySelector(selector);
  const s = {
    root, pill: q(".pill"), what: q(".what"), which: q(".which"), heads: q(".heads"), canvas: q("canvas"), legend: q(".legend"), controls: q(".controls"),
    chain: q(".chain"), tableTitle: q(".table-box h2"), scroll: q(".table-box .scroll"), thead: q("thead"), tbody: q("tbody"),
    wiringTitle: q(".wiring h2"), says: q(".says"), wires: q(".wires"), cost: q(".cost"), view: { kv: "k", head: 0, cell: null }, run: null, shown: -1, given: "", sentAt: -Infinity,
  };
  s.player = new Player({ speed: 0.1, onChange: (p, why) => { if (s.m) drawKv(s, why); } });
  s.tell = settle(() => send(s));
  s.say = announcer(root);
  s.tip = tooltip(root);
  bindKeys(root, s.player, { skip: (target) => target === s.canvas });
  bindGrid(s);
  watch(root, () => { s.colours = null; if (s.m) drawKv(s, "data"); });
  return s;
}

function send(s) {
  const step = s.player.atEnd ? null : s.player.position, view = { step, kv: s.view.kv, head: s.view.head, cell: s.view.cell }, key = JSON.stringify(view);
  if (key === s.sent) return;
  s.sent = key; s.sentAt = performance.now();
  s.commit("view", { ...view, seq: (s.seq = (s.seq ?? 0) + 1) }); // Streamlit passes over a value that it has had last
}

// ---- the grid ---------------------------------------------------------------------------------------------------------

function geometry(s, w, height) {
  const unit = rem(), n = s.m.tokens.length, left = GUTTER * unit, cw = (w - left) / Math.max(1, n), named = cw >= 0.625 * unit;
  const top = named ? LABELS * unit : 0.5 * unit, bottom = height - FOOT * unit;
  return { unit, n, left, cw: Math.min(cw, 3.5 * unit), named, top, bottom, ch: (bottom - top) / s.m.n_layers };
}

function cellAt(s, event) {
  const g = geometry(s, s.canvas.clientWidth, s.canvas.clientHeight);
  const j = Math.floor((event.offsetX - g.left) / g.cw), row = Math.floor((event.offsetY - g.top) / g.ch);
  return j < 0 || j >= g.n || row < 0 || row >= s.m.n_layers ? null : [s.m.n_layers - 1 - row, j];
}

function bindGrid(s) {
  s.canvas.onclick = (event) => { const cell = cellAt(s, event); if (cell) pick(s, cell); };
  s.canvas.onpointerleave = () => { s.hover = null; s.tip.hide(); if (s.m) drawGrid(s); };
  s.canvas.onpointermove = (event) => {
    if (!s.m || event.pointerType === "touch") return;
    const cell = cellAt(s, event);
    if (String(cell) !== String(s.hover)) { s.hover = cell; drawGrid(s); }
    if (!cell) return s.tip.hide();
    s.tip.show(s.canvas.offsetLeft + event.offsetX, s.canvas.offsetTop + event.offsetY, ...cellWords(s, cell).map((line) => h("div", {}, line)));
  };
  s.canvas.onkeydown = (event) => {
    if (!s.m || event.altKey || event.ctrlKey || event.metaKey) return;
    const [l, j] = s.view.cell || [0, 0], moves = { ArrowLeft: [l, j - 1], ArrowRight: [l, j + 1], ArrowUp: [l + 1, j], ArrowDown: [l - 1, j], Home: [l, 0], End: [l, s.m.tokens.length - 1] };
    if (event.key === " ") s.player.toggle();
    else if (moves[event.key]) {
      const [layer, position] = moves[event.key];
      pick(s, [Math.max(0, Math.min(s.m.n_layers - 1, layer)), Math.max(0, Math.min(s.m.tokens.length - 1, position))]);
    } else if (event.key !== "Enter") return;
    event.preventDefault();
  };
}

function pick(s, cell) {
  s.view.cell = cell;
  drawGrid(s);
  s.say(cellWords(s, cell).join(", "));
  s.tell();
}

function cellWords(s, [layer, j]) {
  const m = s.m, { text, f } = s, cached = cachedAt(m, s.player.position), lines = [t(text.cell, { layer: layer + 1, position: positionName(m, j), token: tokenText(m, j) })];
  if (j >= cached) lines.push(stepOf(m, s.player.position - 1)?.token === j ? text.cell_new : text.cell_empty);
  else if (j >= m.n_traced) lines.push(text.cell_untraced);
  else lines.push(t(text[s.view.head ? "cell_norm_head" : "cell_norm"], { kv: s.view.kv.toUpperCase(), head: s.view.head, norm: f.number(norm(s, s.view.kv, s.view.head, layer, j), 2) }));
  return lines;
}

/** How much of cell (layer, j) is written now: 0, 1, or between while its layer is being computed. */
function written(s, layer, j, cached, moving, now) {
  if (j < cached) return 1;
  if (!moving || j >= moving.after) return 0;
  const times = s.layerMs, base = s.player.position * (s.m.n_layers + 1), from = times[base + layer], to = times[base + layer + 1];
  return Math.max(0, Math.min(1, (now - from) / Math.max(1e-6, to - from)));
}

function drawGrid(s) {
  const { ctx, w, h: height } = fitCanvas(s.canvas), { m, player } = s;
  if (w < 2) return; // not on screen (the page is being left)
  const c = (s.colours ||= palette(s.root)), g = geometry(s, w, height);
  const cached = cachedAt(m, player.position), moving = player.playing && player.fraction > 0 && !reducedMotion() ? stepOf(m, player.position) : null;
  const now = moving ? player.fraction * stepDuration(s, player.position) * 1000 - (moving.start - previousEnd(m, player.position)) : 0;
  const limit = moving ? moving.after : cached, settled = g.n * m.n_layers > MANY ? drawPicture(s, ctx, c, g, cached) : 0;
  drawCells(s, ctx, c, g, settled, limit, (l, j) => written(s, l, j, cached, moving, now));
  ctx.globalAlpha = 1;
  ctx.fillStyle = c.soft; ctx.fillRect(g.left + limit * g.cw, g.top, (g.n - limit) * g.cw, g.bottom - g.top); // room for what is still to come
  drawFrame(s, ctx, c, g, cached, limit);
  drawMarks(s, ctx, c, g, cached, moving);
}

/** Cells of columns from…limit one by one, each as far as it is written. */
function drawCells(s, ctx, c, g, from, limit, done) {
  const { m } = s, { alpha } = shades(s), gap = g.cw > 4 ? Math.min(1.25, g.cw * 0.12) : 0, rowGap = g.ch > 5 ? 0.6 : 0;
  const reused = m.steps.length ? stepOf(m, 0).before : 0, grey = from < limit && limit > m.n_traced ? hatch(ctx, c["wait-soft"], { gap: 5, paper: c.wait }) : null;
  for (let l = 0; l < m.n_layers; l++) {
    const y = g.bottom - (l + 1) * g.ch;
    for (let j = from; j < limit; j++) {
      const part = done(l, j), known = j < m.n_traced;
      if (!part) continue;
      ctx.fillStyle = !known ? grey : j < reused ? c.cache : j < m.n_prompt ? c.prefill : c.decode;
      ctx.globalAlpha = (known ? alpha[l * m.n_traced + j] : 0.6) * part;
      ctx.fillRect(g.left + j * g.cw + gap / 2, y + rowGap, Math.max(0.5, g.cw - gap), Math.max(0.5, g.ch - 2 * rowGap));
    }
  }
}

/** Long runs have too many cells to draw one by one in every frame: all of them once, one pixel each, then that picture
 *  stretched. Returns how many columns are done with. */
function drawPicture(s, ctx, c, g, cached) {
  const { m } = s, key = s.shadeKey + c.prefill;
  if (s.pictureKey !== key) {
    s.pictureKey = key;
    s.picture = h("canvas", { width: Math.max(1, m.n_traced), height: m.n_layers });
    const small = { cw: 1, ch: 1, left: 0, bottom: m.n_layers };
    drawCells(s, s.picture.getContext("2d"), c, small, 0, m.n_traced, () => 1);
  }
  const known = Math.min(cached, m.n_traced), tall = g.bottom - g.top;
  ctx.imageSmoothingEnabled = false;
  if (known) ctx.drawImage(s.picture, 0, 0, known, m.n_layers, g.left, g.top, known * g.cw, tall);
  if (cached > known) {
    ctx.fillStyle = hatch(ctx, c["wait-soft"], { gap: 5, paper: c.wait }); ctx.globalAlpha = 0.6;
    ctx.fillRect(g.left + known * g.cw, g.top, (cached - known) * g.cw, tall); ctx.globalAlpha = 1;
  }
  ctx.fillStyle = c.card;
  for (let l = 1; l < m.n_layers; l++) ctx.fillRect(g.left, g.bottom - l * g.ch - 0.5, cached * g.cw, 1);
  return cached;
}

function drawFrame(s, ctx, c, g, cached, limit) {
  const { m } = s, last = stepOf(m, s.player.position - 1);
  ctx.font = `${0.6875 * g.unit}px ${c.sans}`; ctx.fillStyle = c.muted; ctx.textBaseline = "middle"; ctx.textAlign = "start";
  const every = Math.max(1, Math.ceil((1.125 * g.unit) / g.ch)), step = every <= 1 ? 1 : every <= 5 ? 5 : 10;
  for (let l = 0; l < m.n_layers; l++) {
    if (!(l === 0 || l === m.n_layers - 1 || ((l + 1) % step === 0 && m.n_layers - 1 - l >= every && l >= every))) continue;
    ctx.fillText("L" + (l + 1), 0, g.bottom - (l + 0.5) * g.ch);
  }
  ctx.textBaseline = "alphabetic";
  if (g.named) {
    ctx.font = `${Math.min(0.75 * g.unit, g.cw * 0.95)}px ${c.mono}`;
    const shown = Math.max(limit, (last?.token ?? -1) + 1, m.n_prompt);
    for (let j = 0; j < Math.min(shown, m.tokens.length); j++) {
      ctx.fillStyle = j >= cached ? (last?.token === j ? c["new-ink"] : c.muted) : j < m.n_prompt ? c["prefill-ink"] : c["decode-ink"];
      ctx.save(); ctx.translate(g.left + (j + 0.5) * g.cw, g.top - 0.375 * g.unit); ctx.rotate(-Math.PI / 2);
      ctx.textBaseline = "middle"; ctx.fillText(clip(ctx, tokenText(m, j), g.top - 0.5 * g.unit), 0, 0); ctx.restore();
    }
  }
}

function clip(ctx, text, room) {
  if (ctx.measureText(text).width <= room) return text;
  const chars = Array.from(text);
  while (chars.length > 1 && ctx.measureText(chars.join("") + "…").width > room) chars.pop();
  return chars.join("") + "…";
}

/** The dashed column of the token just chosen, the bar of what each phase wrote, the chosen and the pointed-at cell. */
function drawMarks(s, ctx, c, g, cached, moving) {
  const { m, text } = s, last = stepOf(m, s.player.position - 1), x = (j) => g.left + j * g.cw, tall = g.bottom - g.top;
  if (last && last.token !== null && last.token >= cached) {
    ctx.strokeStyle = c.new; ctx.lineWidth = g.cw < 6 ? 1 : 2; ctx.setLineDash([5, 4]);
    ctx.strokeRect(x(last.token) + 1, g.top + 1, Math.max(1, g.cw - 2), tall - 2); ctx.setLineDash([]);
  }
  const bar = g.bottom + 3, thick = 0.25 * g.unit, prompt = Math.min(cached, m.n_prompt);
  ctx.font = `${0.75 * g.unit}px ${c.sans}`; ctx.textBaseline = "alphabetic";
  if (prompt) { ctx.fillStyle = c.prefill; ctx.fillRect(x(0), bar, x(prompt) - x(0) - 1, thick); }
  if (cached > m.n_prompt) { ctx.fillStyle = hatch(ctx, c.decode, { gap: 4, paper: c.card }); ctx.fillRect(x(m.n_prompt), bar, x(cached) - x(m.n_prompt) - 1, thick); }
  const base = bar + thick + 0.875 * g.unit, words = prompt ? text.prefill_short : "";
  if (words) { ctx.fillStyle = c["prefill-ink"]; ctx.fillText(words, x(0), base); }
  if (cached > m.n_prompt) {
    const wide = ctx.measureText(text.decode_short).width, at = Math.max(x(m.n_prompt), words ? x(0) + ctx.measureText(words).width + 10 : 0);
    ctx.fillStyle = c["decode-ink"]; ctx.fillText(text.decode_short, Math.min(at, s.canvas.clientWidth - wide), base);
  }
  if (moving) { ctx.strokeStyle = c.ink; ctx.lineWidth = 1; ctx.strokeRect(x(moving.before) - 0.5, g.top - 0.5, moving.n * g.cw, tall + 1); }
  for (const [cell, width] of [[s.hover, 1], [s.view.cell, 2]]) {
    if (!cell || cell[0] >= m.n_layers || cell[1] >= m.tokens.length) continue;
    ctx.strokeStyle = c.ink; ctx.lineWidth = width;
    ctx.strokeRect(x(cell[1]) - 0.5, g.bottom - (cell[0] + 1) * g.ch - 0.5, g.cw + 1, g.ch + 1);
  }
}

function previousEnd(m, i) { return i ? m.steps[i - 1][5] : m.steps[0][4]; }
function stepDuration(s, i) { return Math.max(0.001, (s.m.steps[i][5] - previousEnd(s.m, i)) / 1000); }

// ---- words and figures ------------------------------------------------------------------------------------------------

function drawHead(s) {
  const { m, player, text, f } = s, i = player.playing && player.position < m.steps.length ? player.position : player.position - 1, step = stepOf(m, i);
  s.pill.className = "pill " + (step?.phase ?? ""); s.pill.hidden = !step;
  s.pill.textContent = step ? text[step.phase + "_short"] : "";
  s.what.textContent = step
    ? [t(text.pass_of, { i: i + 1, n: m.steps.length }), step.n === 1 ? t(text.reads_one, { token: tokenText(m, step.before) }) : t(text.reads, { n: f.int(step.n) }), f.ms(step.end - step.start)].join(" · ")
    : text.nothing_yet;
}

function fig(value, label, kind, text) { return h("div", { class: "fig" }, h("b", {}, value), h("span", {}, label, h("em", { class: "kind" }, text[kind]))); }

function drawChain(s) {
  const { m, text, f } = s, head = 2 * m.head_dim * m.dtype_bytes, layer = head * m.n_kv_heads, all = layer * m.n_layers, cached = cachedAt(m, s.player.position);
  const parts = [
    fig(f.bytes(head), t(text.per_head, { head_dim: m.head_dim, dtype_bytes: m.dtype_bytes }), "computed", text),
    h("span", { class: "times" }, t(text.times_heads, { n: m.n_kv_heads })), fig(f.bytes(layer), text.per_layer, "computed", text),
    h("span", { class: "times" }, t(text.times_layers, { n: m.n_layers })), fig(f.bytes(all), text.per_token, "computed", text),
    h("span", { class: "times" }, t(cached === 1 ? text.times_token : text.times_tokens, { n: f.int(cached) })), fig(f.bytes(all * cached), t(text.total, { bytes: f.int(all * cached) }), "computed", text),
  ];
  if (m.measured && s.player.atEnd) parts.push(h("span", { class: "times" }, m.measured.bytes === all * cached ? "=" : "≠"), fig(f.bytes(m.measured.bytes), t(text[m.measured.tensors], { bytes: f.int(m.measured.bytes) }), m.measured.kind, text));
  s.chain.replaceChildren(...parts);
}

function buildTable(s) {
  const { m, text } = s;
  s.tableTitle.textContent = text.table;
  s.scroll.setAttribute("aria-label", text.table);
  s.thead.replaceChildren(h("tr", {}, ...["pass", "input", "before", "computed_now", "after", "chosen"].map((k) => h("th", { scope: "col" }, text["col_" + k]))));
  s.tbody.replaceChildren(...m.steps.map((_, i) => tableRow(s, i)));
}

function tableRow(s, i) {
  const { m, text } = s, step = stepOf(m, i);
  const named = (j, phase) => h("span", {}, chip(token(m, j), { phase }), h("small", {}, positionName(m, j)));
  const reads = step.n === 1 ? named(step.before, step.phase) : h("span", {}, chip(token(m, step.before), { phase: step.phase }), " … ", chip(token(m, step.after - 1), { phase: step.phase }), h("small", {}, rangeName(m, step.before, step.after)));
  const go = () => s.player.go(i + 1);
  return h("tr", { onclick: go, dataset: { i: i + 1 } },
    h("td", {}, h("button", { type: "button", onclick: (event) => { event.stopPropagation(); go(); }, "aria-label": t(text.pass_of, { i: i + 1, n: m.steps.length }) }, String(i + 1))),
    h("td", {}, reads), h("td", {}, h("span", {}, rangeName(m, 0, step.before))), h("td", {}, h("span", {}, rangeName(m, step.before, step.after))),
    h("td", {}, h("span", {}, rangeName(m, 0, step.after))), h("td", {}, step.token === null ? h("span", {}, "–") : named(step.token, "new")));
}

function drawTable(s) {
  let current = null;
  for (const [i, row] of [...s.tbody.children].entries()) {
    row.classList.toggle("now", i + 1 === s.player.position); row.classList.toggle("future", i + 1 > s.player.position);
    if (i + 1 === s.player.position) { row.setAttribute("aria-current", "step"); current = row; } else row.removeAttribute("aria-current");
  }
  // Inside its own box only: the page must not move while a run plays.
  if (!current) { s.scroll.scrollTop = 0; return; }
  const top = current.offsetTop - s.thead.offsetHeight, bottom = current.offsetTop + current.offsetHeight;
  if (top < s.scroll.scrollTop) s.scroll.scrollTop = top; else if (bottom > s.scroll.scrollTop + s.scroll.clientHeight) s.scroll.scrollTop = bottom - s.scroll.clientHeight;
}

/** Query heads above, KV heads below, and who shares whom. A click on a KV head shows it in the grid, like its button above. */
function drawWires(s) {
  const { m, text, f, view } = s, share = m.n_heads / m.n_kv_heads, width = 320, size = Math.min(26, (width - 8) / m.n_heads - 3), kvSize = Math.min(40, ((width - 8) / m.n_kv_heads) * 0.7);
  const qx = (i) => ((i + 0.5) / m.n_heads) * width, kx = (k) => ((k + 0.5) / m.n_kv_heads) * width, names = m.n_heads <= 16;
  const picture = svg("svg", { viewBox: `0 0 ${width} 148`, role: "group", "aria-label": text.wiring });
  picture.append(svg("text", { class: "side", x: 0, y: 11 }, t(text.query_heads, { n: m.n_heads })), svg("text", { class: "side", x: 0, y: 146 }, t(text.kv_heads, { n: m.n_kv_heads })));
  for (let i = 0; i < m.n_heads; i++) {
    const k = Math.floor(i / share), off = view.head && view.head !== k + 1 ? " off" : "", on = view.head === k + 1 ? "on" : "";
    picture.append(svg("path", { class: on + off, d: `M${qx(i)} ${18 + size} C ${qx(i)} 72, ${kx(k)} 62, ${kx(k)} 96` }));
    picture.append(svg("rect", { class: "q" + off, x: qx(i) - size / 2, y: 18, width: size, height: size, rx: 5 }));
    if (names) picture.append(svg("text", { class: off.trim(), x: qx(i), y: 18 + size / 2 + 4 }, String(i + 1)));
  }
  for (let k = 0; k < m.n_kv_heads; k++) {
    const on = view.head === k + 1, choose = () => setHead(s, on ? 0 : k + 1);
    const box = svg("rect", { class: "kv" + (on ? " on" : ""), x: kx(k) - kvSize / 2, y: 96, width: kvSize, height: 30, rx: 6, onclick: choose });
    picture.append(box);
    if (m.n_kv_heads <= 16) picture.append(svg("text", { class: on ? "on" : "", x: kx(k), y: 115, "pointer-events": "none" }, String(k + 1)));
  }
  s.wires.replaceChildren(picture);
  s.wiringTitle.textContent = text.wiring;
  s.says.textContent = share === 1 ? text.says_mha : m.n_kv_heads === 1 ? t(text.says_mqa, { n: m.n_heads }) : t(text.says_gqa, { n: share });
  const cached = cachedAt(m, s.player.position), per = 2 * m.head_dim * m.dtype_bytes * m.n_layers * cached;
  s.cost.replaceChildren(share === 1 ? t(text.cost_mha, { now: f.bytes(per * m.n_heads) }) : t(text.cost, { now: f.bytes(per * m.n_kv_heads), mha: f.bytes(per * m.n_heads), times: f.number(share, share % 1 ? 1 : 0) }), " ", h("em", { class: "kind" }, text.computed));
}

function setHead(s, head) { s.view.head = head; afterMode(s); }
function afterMode(s) { drawModes(s); drawKv(s, "mode"); s.tell(); }

function toggles(box, label, options, current, choose) {
  box.setAttribute("role", "group"); box.setAttribute("aria-label", label);
  if (box.children.length !== options.length) box.replaceChildren(...options.map(() => h("button", { type: "button" })));
  options.forEach(([value, words], i) => {
    const button = box.children[i];
    button.textContent = words; button.onclick = () => choose(value);
    button.setAttribute("aria-pressed", value === current);
  });
}

function drawModes(s) {
  const { m, text, view } = s;
  toggles(s.which, text.which, [["k", text.keys], ["v", text.values]], view.kv, (kv) => { view.kv = kv; afterMode(s); });
  const heads = Array.from({ length: m.n_kv_heads }, (_, k) => [k + 1, m.n_kv_heads <= 4 ? t(text.head, { n: k + 1 }) : String(k + 1)]);
  toggles(s.heads, text.heads, [[0, text.all_heads], ...(m.n_kv_heads > 1 && m.n_kv_heads <= 8 ? heads : [])], view.head, (head) => { view.head = head; afterMode(s); });
}

function drawLegend(s) {
  const { text, f, m, view } = s, { low, high } = shades(s);
  const item = (name, words) => h("span", {}, h("i", { class: name }), words);
  s.legend.replaceChildren(item("fill-prefill", text.legend_prefill), item("fill-decode", text.legend_decode), item("fill-new", text.legend_new),
    ...(m.n_traced < cachedAt(m, m.steps.length) ? [item("untraced", t(text.legend_untraced, { n: f.int(m.n_traced) }))] : []),
    ...(m.n_traced ? [h("span", { class: "scale" }, h("span", {}, t(text.scale, { kv: view.kv.toUpperCase() })), h("span", {}, f.number(low, 1)), h("i", { class: "ramp" }), h("span", {}, f.number(high, 1)), h("em", { class: "kind" }, text.measured))] : []));
}

function drawKv(s, why) {
  const { m, player, text } = s;
  if (why === "play" && reducedMotion() && s.shown === player.position) return;
  drawGrid(s);
  if (s.shown !== player.position || why === "data" || why === "mode") {
    s.shown = player.position;
    drawChain(s); drawTable(s); drawWires(s); drawLegend(s);
    const last = stepOf(m, player.position - 1), cached = cachedAt(m, player.position);
    s.canvas.setAttribute("aria-label", t(text.aria_grid, { layers: m.n_layers, cached, tokens: m.tokens.length, token: last && last.token !== null ? tokenText(m, last.token) : "–" }));
  }
  drawHead(s);
  if (why !== "commit") return;
  s.say(s.what.textContent);
  s.tell();
}

export default function (component) {
  const { data, parentElement, setStateValue } = opened(component);
  const s = instance(parentElement, buildKv);
  if (!data?.meta) return;
  const m = data.meta, fresh = m.run !== s.run;
  Object.assign(s, { m, run: m.run, text: m.text, f: formats(m.lang), norms: column(data.norms) ?? [], layerMs: column(data.layer_ms) ?? [], commit: setStateValue, colours: null, shadeKey: null, pictureKey: null });
  s.root.setAttribute("aria-label", m.text.aria);
  s.canvas.setAttribute("aria-roledescription", m.text.grid);
  const valueText = (p) => t(s.text.pass_of, { i: p.position, n: p.count });
  if (!s.bar) s.controls.append((s.bar = playerBar(s.player, m.text, { speeds: [0.02, 0.1, 0.25, 1], valueText }))); else s.bar.setText(m.text);
  // Python sends the view along when it draws the whole page: it is news for a new run, and when somebody went Back in
  // the browser. Soon after a choice of one's own it may still be that from before it.
  const given = JSON.stringify(m.view), news = fresh || (given !== s.given && given !== s.sent && performance.now() - s.sentAt > 3000);
  s.given = given;
  if (news) {
    s.tell.cancel();
    s.view = { kv: m.view.kv, head: m.view.head <= m.n_kv_heads ? m.view.head : 0, cell: m.view.cell };
    s.sent = JSON.stringify({ step: m.view.step, ...s.view });
    s.player.pause({ quiet: true });
  }
  drawModes(s); buildTable(s);
  s.player.update({ count: m.steps.length, duration: (i) => stepDuration(s, i), ...(news ? { position: m.view.step ?? m.steps.length } : {}) });
  return () => { s.tell.cancel(); s.player.stop(); };
}
