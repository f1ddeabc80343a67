/* The tree of branches: a run, and what it would have said with another token in one place.
 *
 * DATA (built by pages/views/branch_tree.py)
 * {
 *   tree,                       names the tree: a new name resets the selection
 *   prompt,                     the end of the prompt as text
 *   names: {id: [text, hex, special]},
 *   branches: [{id, parent, at, state, error, copied, saved, passes, batch, tokens: [[id, p, bits, [[id, p]…]]…]}],
 *                               branch 0 is the run itself; `at` = number of the choice where a branch leaves its parent;
 *                               of each token: its probability there, the doubt in bits, the likeliest candidates
 *   select: {branch, at},       what to show first
 *   ready, room,                the model is loaded; more branches may be grown
 *   lang, text: {…}             the strings of TEXT below
 * }
 * Sends setTriggerValue("grow", {branch, at, ids}) and setTriggerValue("clear", true); setStateValue("place", {branch, at}).
 *
 * TEXT  aria strip strip_token {i} {text} {bits} run branch {text} · candidates {context} · stands take grown all_others not_ready full
 *   tree side_by_side · state_waiting state_running failed · copied {n} saved {n} passes {n} batch {n} measured · clear · shared instead {text}
 */

function build(root) {
  const view = { root, data: null, selected: null, tree: null };
  view.strip = h("div", { class: "chips strip", role: "radiogroup" });
  view.whose = h("p", { class: "whose" });
  view.askTitle = h("h2");
  view.rows = h("div", { class: "rows" });
  view.all = h("button", { class: "btn primary", type: "button", onclick: () => grow(view, others(view)) });
  view.clear = h("button", { class: "btn", type: "button", onclick: () => view.trigger("clear", true) });
  view.hint = h("p", { class: "note", role: "status" });
  view.mapTitle = h("h2");
  view.map = h("div", { class: "map" });
  view.wires = svg("svg", { class: "wires", "aria-hidden": "true" });
  view.cardsTitle = h("h2");
  view.cards = h("div", { class: "cards" });
  root.append(
    h("section", { class: "card" }, view.mapTitle, h("div", { class: "scroll-y" }, h("div", { class: "map-box" }, view.wires, view.map))),
    h("section", { class: "card" }, view.whose, view.strip, h("div", { class: "ask" }, view.askTitle, view.rows, h("div", { class: "bar" }, view.all, view.clear), view.hint)),
    h("section", { class: "card" }, view.cardsTitle, view.cards));
  view.say = announcer(root);
  view.stop = watch(root, () => { if (view.data) { drawMap(view); drawWires(view); } });
  view.strip.onkeydown = (event) => moveAlong(view, event);
  return view;
}

function update(view, component) {
  const { data } = opened(component);
  view.trigger = component.setTriggerValue; view.send = component.setStateValue;
  view.data = data; view.text = data.text; view.f = formats(data.lang);
  view.branches = new Map(data.branches.map((branch) => [branch.id, branch]));
  if (view.tree !== data.tree) { view.tree = data.tree; view.selected = { ...data.select }; }
  if (!view.branches.has(view.selected.branch)) view.selected = { ...data.select };
  draw(view);
}

/* ---- the tree as data ---- */

function token(view, id) { const [text, hex, special] = view.data.names[id] ?? ["#" + id, "", false]; return { text, hex, special, id }; }
function plain(view, places) { return places.map(([id]) => token(view, id)).filter((x) => !x.special).map((x) => x.text).join(""); }
/** The branch whose choice this place is: a branch's first token stands in its parent's place. */
function home(view, branch, at) { while (branch.id && at <= branch.at) branch = view.branches.get(branch.parent); return branch; }
/** All places of the answer on the way to the end of this branch: [{place, owner, at}]. */
function path(view, branch) {
  const before = branch.id ? path(view, view.branches.get(branch.parent)).slice(0, branch.at) : [];
  return [...before, ...branch.tokens.map((place, i) => ({ place, owner: branch.id, at: branch.at + i }))];
}
function here(view) {
  const chosen = view.branches.get(view.selected.branch), owner = home(view, chosen, view.selected.at);
  return { chosen, owner, at: view.selected.at, place: owner.tokens[view.selected.at - owner.at] };
}
function children(view, owner, at = null) { return view.data.branches.filter((b) => b.id && b.parent === owner.id && (at === null || b.at === at)); }
function others(view) {
  const { owner, at, place } = here(view), known = new Set([place[0], ...children(view, owner, at).map((b) => b.tokens[0][0])]);
  return place[3].map(([id]) => id).filter((id) => !known.has(id));
}

function grow(view, ids) {
  const { owner, at } = here(view);
  if (ids.length) view.trigger("grow", { branch: owner.id, at, ids });
}

function select(view, branch, at, { focus = false } = {}) {
  view.selected = { branch, at };
  draw(view);
  if (focus) view.strip.querySelector("[aria-checked=true]")?.focus();
  view.send("place", { branch, at });
}

/* ---- drawing ---- */

function draw(view) {
  const { text } = view;
  view.root.setAttribute("role", "group"); view.root.setAttribute("aria-label", text.aria);
  drawMap(view); drawStrip(view); drawCandidates(view); drawCards(view); drawWires(view);
}

function set(node, words) { if (node.textContent !== words) node.textContent = words; }

/** One line per branch, in the order of a depth-first walk; each starts under the token that it replaces. */
function drawMap(view) {
  set(view.mapTitle, view.text.tree);
  const lanes = [];
  const walk = (branch) => { lanes.push(branch); for (const child of children(view, branch)) walk(child); };
  walk(view.branches.get(0));
  view.lanes = lanes;
  const { owner, at } = here(view), narrow = view.root.clientWidth < 560;
  view.map.replaceChildren(...lanes.map((branch) => {
    const start = narrow ? firstShown(view, branch, owner, at) : 0;
    const words = branch.tokens.slice(start).map((place, j) => {
      const i = start + j, fork = branch.id && i === 0, on = branch.id === owner.id && branch.at + i === at;
      return h("span", { dataset: { i }, class: `word${fork ? " fork" : ""}${on ? " here" : ""}${children(view, branch, branch.at + i).length ? " parting" : ""}`,
        onclick: () => select(view, branch.id, branch.at + i) }, showWord(view, place[0]));
    });
    const head = branch.id ? h("b", { class: "share" }, view.f.percent(branch.tokens[0][1])) : h("b", { class: "share" }, view.text.run);
    return h("div", { class: "lane" + (branch.id ? "" : " trunk") + (growing(branch) ? " growing" : ""), dataset: { id: branch.id } }, head, h("span", { class: "words" }, start ? "… " : "", ...words));
  }));
}

/** On a phone the run's line begins shortly before its first parting, so that the parting can be seen. */
function firstShown(view, branch, owner, at) {
  const partings = children(view, branch).map((child) => child.at);
  if (branch.id === owner.id) partings.push(at);
  return branch.id || !partings.length ? 0 : Math.max(0, Math.min(...partings) - 2);
}

function growing(branch) { return branch.state === "waiting" || branch.state === "running"; }
/** A token inside running text: its own spaces, but no line breaks. */
function showWord(view, id) { const x = token(view, id); return x.text.includes("\ufffd") || x.special || !x.text.trim() ? showToken(x.text, x.hex, x) : x.text.replace(/\s*\n\s*/g, " ⏎ "); }

/** Indents every lane to its fork and draws the wires. Measured after layout, because words have no common width. */
function drawWires(view) {
  if (!view.lanes) return;
  const box = view.map.getBoundingClientRect(), limit = box.width * 0.55, nodes = new Map([...view.map.children].map((node) => [+node.dataset.id, node]));
  const lines = [];
  for (const branch of view.lanes) {
    const node = nodes.get(branch.id);
    if (!branch.id) { node.style.marginLeft = "0"; continue; }
    const parent = nodes.get(branch.parent), word = parent.querySelector(`[data-i="${branch.at - view.branches.get(branch.parent).at}"]`);
    const x = word ? Math.min(limit, Math.max(0, word.getBoundingClientRect().left - box.left)) : 0;
    node.style.marginLeft = x + rem(1.25) + "px";
    lines.push([x + rem(0.4), parent, node]);
  }
  const height = view.map.offsetHeight, c = palette(view.root);
  view.wires.setAttribute("viewBox", `0 0 ${box.width} ${height}`);
  view.wires.style.height = height + "px";
  view.wires.replaceChildren(...lines.map(([x, parent, node]) => {
    const from = parent.offsetTop + parent.offsetHeight - 3, to = node.offsetTop + node.offsetHeight / 2;
    return svg("path", { d: `M${x} ${from} V${to - 6} q0 6 6 6 H${x + rem(0.6)}`, fill: "none", stroke: c.new, "stroke-width": 2, "stroke-dasharray": "4 3" });
  }));
}

function drawStrip(view) {
  const { text, f } = view, { chosen, at } = here(view), way = path(view, chosen), mine = chosen.id ? t(text.branch, { text: plain(view, chosen.tokens.slice(0, 1)) }) : text.run;
  set(view.whose, t(text.strip, { whose: mine }));
  view.strip.setAttribute("aria-label", view.whose.textContent);
  view.way = way;
  view.strip.replaceChildren(...way.map(({ place, owner, at: i }) => {
    const x = token(view, place[0]), on = i === at, shared = owner !== chosen.id;
    const node = chip(x, { phase: on ? "new" : shared ? "" : "decode", onclick: () => select(view, chosen.id, i, { focus: true }), title: t(text.bits, { bits: f.bits(place[2]) }) });
    node.setAttribute("role", "radio"); node.setAttribute("aria-checked", on); node.tabIndex = on ? 0 : -1;
    node.setAttribute("aria-label", t(text.strip_token, { i: i + 1, text: showToken(x.text, x.hex, x), bits: f.bits(place[2]) }));
    return node;
  }));
}

function moveAlong(view, event) {
  const n = view.way.length, { at, branch } = view.selected;
  const to = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: n - 1 }[event.key];
  if (to === undefined || to < 0 || to >= n) return;
  event.preventDefault();
  select(view, branch, to, { focus: true });
}

function drawCandidates(view) {
  const { text, f, data } = view, { owner, at, place, chosen } = here(view), way = path(view, chosen).slice(0, at);
  const context = at ? "… " + plain(view, way.slice(-6).map((x) => x.place)).trim() : data.prompt;
  set(view.askTitle, t(text.candidates, { context }));
  const grown = new Map(children(view, owner, at).map((b) => [b.tokens[0][0], b]));
  const known = place[3].some(([id]) => id === place[0]) ? place[3] : [...place[3], [place[0], place[1]]];
  view.rows.replaceChildren(...known.map(([id, p]) => {
    const x = token(view, id), stands = id === place[0], words = showToken(x.text, x.hex, x);
    const act = stands ? h("span", { class: "stands" }, text.stands)
      : grown.has(id) ? h("button", { class: "btn small", type: "button", onclick: () => select(view, grown.get(id).id, at), "aria-label": `${text.grown}: ${words}` }, text.grown)
      : h("button", { class: "btn small", type: "button", disabled: !data.ready || !data.room, onclick: () => grow(view, [id]), "aria-label": `${text.take}: ${words}` }, text.take);
    return h("div", { class: "row" }, h("code", {}, words), h("div", { class: "track" }, h("u", { style: { width: p * 100 + "%" } })), h("span", {}, f.percent(p)), act);
  }));
  set(view.all, text.all_others); view.all.disabled = !data.ready || !data.room || !others(view).length;
  set(view.clear, text.clear); view.clear.hidden = data.branches.length < 2;
  set(view.hint, !data.ready ? text.not_ready : !data.room ? text.full : "");
}

/** Every way on from the selected place: what stands there, and what was grown instead. */
function drawCards(view) {
  const { text, f } = view, { owner, at, chosen } = here(view), ways = [{ branch: owner, own: false }, ...children(view, owner, at).map((branch) => ({ branch, own: true }))];
  const before = path(view, chosen).slice(0, at), shared = plain(view, before.slice(-8).map((x) => x.place)).trimStart();
  set(view.cardsTitle, text.side_by_side);
  view.cards.replaceChildren(...ways.map(({ branch, own }) => {
    const places = own ? branch.tokens : branch.tokens.slice(at - branch.at), first = places[0];
    const words = places.slice(1).map((place, i) => h("span", { class: "word", onclick: () => select(view, branch.id, at + 1 + i) }, showWord(view, place[0])));
    const x = token(view, first[0]);
    const title = h("h3", {}, chip(x, { phase: own ? "new" : "decode" }), " ", h("span", { class: "share" }, f.percent(first[1])), " ", h("span", { class: "note" }, own ? "" : branch.id ? text.stands : text.run));
    return h("article", { class: "way" + (growing(branch) ? " growing" : "") }, title,
      h("p", { class: "said" }, h("span", { class: "shared" }, shared ? "… " + shared : ""), h("mark", { class: own ? "" : "old" }, showWord(view, first[0])), ...words, growing(branch) ? h("i", { class: "caret" }) : null),
      h("p", { class: "note" }, note(view, branch, own)));
  }));
}

function note(view, branch, own) {
  const { text, f } = view;
  if (branch.error) return branch.error;
  if (branch.state === "waiting") return text.state_waiting;
  if (!own && !branch.id) return t(text.passes_run, { n: f.int(branch.passes) });
  return [t(text.copied, { n: f.int(branch.copied) }), t(text.saved, { n: f.int(branch.saved) }), t(text.passes, { n: f.int(branch.passes) }), text.measured].join(" · ");
}

export default function (component) {
  update(instance(component.parentElement, build), component);
}
