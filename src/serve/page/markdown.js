// This file draws Markdown as nodes of the page. No text of a model is read as HTML: its tags are shown as they are
// written, a link is made only if its address begins with http:, https: or mailto:, and an image becomes a link, so
// nothing is fetched. Every part is drawn by `write(parent, from, to)`, which appends the source's characters from..to.
const markdown = (() => {
  const DEPTH = 8, INLINE = 20000, COLUMNS = 50, ROWS = 1000, WHOLE = 400000;
  const FENCE = /^ {0,3}(`{3,}|~{3,})([^\n]*)$/, HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/, RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
  const QUOTE = /^ {0,3}> ?/, ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/, DASHES = /^[ \t]*:?-+:?[ \t]*$/;
  const LINK = /https?:\/\/[^\s<>"`|\\]+/y;
  const node = (tag, name) => { const e = document.createElement(tag); if (name) e.className = name; return e };

  function safe(address) {
    try {
      const url = new URL(address);
      return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
    } catch { return null }
  }
  function link(address) {
    const a = node('a');
    a.href = address; a.title = address; a.target = '_blank'; a.rel = 'noopener noreferrer nofollow';
    return a;
  }

  // Returns where an address ends; characters that close a sentence are no part of it.
  function without_end(address) {
    let end = address.length;
    while (end > 0 && ".,;:!?*_'])}".includes(address[end - 1])) --end;
    return address.slice(0, end);
  }

  // Draws the inside of a block. `lines` are ranges of the source, joined to one text whose characters know their places.
  function inline(parent, source, lines, write) {
    const text = lines.map(l => source.slice(l.from, l.to)).join('\n'), starts = [];
    for (let i = 0, at = 0; i < lines.length; ++i) { starts.push(at); at += lines[i].to - lines[i].from + 1 }
    const put = (to, from, end) => {  // It writes characters of the text line by line, with line ends.
      let i = 0;  // This becomes the last line that begins at or before `from`.
      for (let above = lines.length; above - i > 1;) { const middle = (i + above) >> 1; if (starts[middle] <= from) i = middle; else above = middle }
      for (; from < end; ++i) {
        const stop = Math.min(end, i + 1 < starts.length ? starts[i + 1] : end), shift = lines[i].from - starts[i];
        write(to, from + shift, stop + shift);
        from = stop;
      }
    };
    if (text.length > INLINE) return put(parent, 0, text.length);
    const brackets = new Map(), open = [];
    for (let i = 0; i < text.length; ++i) {
      if (text[i] === '\\') ++i;
      else if (text[i] === '[') open.push(i);
      else if (text[i] === ']' && open.length) brackets.set(open.pop(), i);
    }
    const space = c => c === undefined || /\s/.test(c), word = c => c !== undefined && /[\p{L}\p{N}]/u.test(c);
    const run = i => { let n = 1; while (text[i + n] === text[i]) ++n; return n };

    // Returns where `mark` closes the part opened before `from`. A mark that was not found is not searched again.
    function closing(mark, from, to, vain) {
      if (vain.has(mark)) return -1;
      for (let i = text.indexOf(mark, from); i >= 0 && i + mark.length <= to; i = text.indexOf(mark, i)) {
        const n = run(i), fits = n === mark.length || (n === 3 && mark.length < 3);
        if (fits && !space(text[i - 1]) && text[i - 1] !== '\\' && !(mark[0] === '_' && word(text[i + n]))) return n === 3 && mark.length < 3 ? i + n - mark.length : i;
        i += n;
      }
      vain.add(mark);
      return -1;
    }
    // Returns for [label](address "title") where the address stands and where the link ends.
    function target(close, to) {
      if (text[close + 1] !== '(') return null;
      let depth = 1, i = close + 2;
      for (; i < to && i < close + 2000; ++i) {
        if (/\s/.test(text[i]) && text[i] === '\n') return null;
        if (text[i] === '(') ++depth;
        if (text[i] === ')' && --depth === 0) break;
      }
      if (depth !== 0 || i >= to) return null;
      const inside = text.slice(close + 2, i).trim().split(/\s+/)[0] ?? '';
      return { address: safe(inside.replace(/^<(.*)>$/, '$1')), end: i + 1 };
    }

    function draw(to, from, end, depth) {
      const vain = new Set();
      let plain = from, i = from;
      const flush = at => { if (at > plain) put(to, plain, at) };
      const around = (tags, begin, close, n) => {
        flush(i);
        let inner = to;
        for (const tag of tags) { const e = node(tag); inner.append(e); inner = e }
        draw(inner, begin, close, depth + 1);
        plain = i = close + n;
      };
      while (i < end) {
        const c = text[i];
        if (c === '\\' && /[!-/:-@[-`{-~]/.test(text[i + 1] ?? '')) { flush(i); plain = i + 1; i += 2; continue }
        if (c === '`') {
          const n = run(i), mark = '`'.repeat(n);
          let close = vain.has(mark) ? -1 : text.indexOf(mark, i + n);
          while (close >= 0 && (run(close) !== n)) close = text.indexOf(mark, close + run(close));
          if (close < 0 || close + n > end) { vain.add(mark); i += n; continue }
          flush(i);
          const code = node('code');
          put(code, i + n, close);
          to.append(code);
          plain = i = close + n;
          continue;
        }
        if (depth < DEPTH && (c === '*' || c === '_' || (c === '~' && text[i + 1] === '~'))) {
          const n = run(i), mark = c.repeat(n);
          const opens = n <= 3 && (c !== '~' || n === 2) && !space(text[i + n]) && !(c === '_' && word(text[i - 1]));
          const close = opens ? closing(mark, i + n, end, vain) : -1;
          if (close < 0) { i += n; continue }
          around(c === '~' ? ['del'] : n === 1 ? ['em'] : n === 2 ? ['strong'] : ['strong', 'em'], i + n, close, n);
          continue;
        }
        if (depth < DEPTH && (c === '[' || (c === '!' && text[i + 1] === '['))) {
          const begin = c === '!' ? i + 1 : i, close = brackets.get(begin), found = close === undefined || close >= end ? null : target(close, end);
          if (found?.address) {
            flush(i);
            const a = link(found.address);
            draw(a, begin + 1, close, depth + 1);
            if (!a.textContent) a.textContent = found.address;
            to.append(a);
            plain = i = found.end;
            continue;
          }
        }
        if (c === 'h' && !word(text[i - 1]) && to.tagName !== 'A') {
          LINK.lastIndex = i;
          const found = without_end(LINK.exec(text)?.[0].slice(0, end - i) ?? '');
          if (found && safe(found)) {
            flush(i);
            const a = link(safe(found));
            put(a, i, i + found.length);
            to.append(a);
            plain = i = i + found.length;
            continue;
          }
        }
        if (c === '<') {  // Cells of tables have no other way to write a line end.
          const found = /^<br ?\/?>/i.exec(text.slice(i, i + 6));
          if (found) { flush(i); to.append(node('br')); plain = i = i + found[0].length; continue }
        }
        ++i;
      }
      flush(end);
    }
    draw(parent, 0, text.length, 0);
  }

  // The functions below are about blocks: each says where it stands in the source and how it is drawn.
  const shown = (source, l) => source.slice(l.from, l.to);
  const blank = (source, l) => !/\S/.test(shown(source, l));

  // Returns the places of a row's cells.
  function cells(source, l) {
    const text = shown(source, l), all = [];
    let from = text.search(/\S/);
    if (from < 0) return [];
    if (text[from] === '|') ++from;
    for (let i = from; i <= text.length; ++i) {
      if (text[i] === '\\') { ++i; continue }
      if (i < text.length && text[i] !== '|') continue;
      const cell = text.slice(from, i), left = cell.search(/\S/), right = cell.trimEnd().length;
      if (i < text.length || left >= 0) all.push(left < 0 ? { from: l.from + i, to: l.from + i } : { from: l.from + from + left, to: l.from + from + right });
      from = i + 1;
    }
    return all;
  }
  function is_table(source, lines, i) {
    if (i + 1 >= lines.length || !shown(source, lines[i]).includes('|')) return false;
    const below = cells(source, lines[i + 1]);
    return below.length > 0 && below.length <= COLUMNS && shown(source, lines[i + 1]).includes('-') && below.every(c => DASHES.test(shown(source, c))) && cells(source, lines[i]).length === below.length;
  }
  const begins = (source, lines, i) => {
    const text = shown(source, lines[i]), item = ITEM.exec(text);
    return FENCE.test(text) || HEADING.test(text) || RULE.test(text) || QUOTE.test(text) || is_table(source, lines, i) || (item && item[3] && (!/\d/.test(item[2]) || parseInt(item[2]) === 1));
  };

  function fence(source, lines, i, found) {
    const mark = found[1], language = found[2].trim().split(/\s+/)[0], end = new RegExp('^ {0,3}' + mark[0] + '{' + mark.length + ',}[ \\t]*$');
    let last = i + 1;
    while (last < lines.length && !end.test(shown(source, lines[last]))) ++last;
    const code = lines.slice(i + 1, last);
    return [Math.min(last + 1, lines.length), write => {
      const box = node('div', 'code'), bar = node('div', 'bar'), name = node('span'), copy = node('button', 'copy'), pre = node('pre'), inner = node('code');
      name.textContent = language || 'code';
      copy.type = 'button'; copy.textContent = 'Copy'; copy.copies = code.map(l => shown(source, l)).join('\n');
      code.forEach((l, n) => write(inner, l.from, l.to + (n + 1 < code.length ? 1 : 0)));
      bar.append(name, copy); pre.append(inner); box.append(bar, pre);
      pre.tabIndex = 0;
      return box;
    }];
  }
  function table(source, lines, i) {
    const sides = cells(source, lines[i + 1]).map(c => { const t = shown(source, c); return t.endsWith(':') ? (t.startsWith(':') ? 'center' : 'right') : '' });
    let last = i + 2;
    while (last < lines.length && last < i + 2 + ROWS && shown(source, lines[last]).includes('|')) ++last;
    return [last, write => {
      const box = node('div', 'table'), all = node('table'), head = node('thead'), body = node('tbody');
      const row = (to, tag, l) => {
        const tr = node('tr'), own = cells(source, l);
        sides.forEach((side, n) => {
          const cell = node(tag);
          if (side) cell.style.textAlign = side;
          if (own[n]) inline(cell, source, [own[n]], write);
          tr.append(cell);
        });
        to.append(tr);
      };
      row(head, 'th', lines[i]);
      for (let n = i + 2; n < last; ++n) row(body, 'td', lines[n]);
      all.append(head, body); box.append(all);
      box.tabIndex = 0;
      return box;
    }];
  }
  function quote(source, lines, i, depth) {
    let last = i;
    const inner = [];
    for (; last < lines.length; ++last) {
      const found = QUOTE.exec(shown(source, lines[last]));
      if (!found) break;
      inner.push({ from: lines[last].from + found[0].length, to: lines[last].to });
    }
    return [last, write => fill(node('blockquote'), source, inner, write, depth + 1)];
  }
  function list(source, lines, i, found, depth) {
    const ordered = /\d/.test(found[2]), items = [];
    let width = 0, last = i, lately_blank = false;
    for (; last < lines.length; ++last) {
      const line = lines[last], text = shown(source, line);
      if (!/\S/.test(text)) { if (lately_blank || !items.length) break; lately_blank = true; items.at(-1).push({ from: line.to, to: line.to }); continue }
      const indent = text.search(/\S/), item = ITEM.exec(text);
      if (items.length && indent >= width) {
        items.at(-1).push({ from: line.from + width, to: line.to });
      } else if (item && item[1].length < Math.max(width, found[1].length + 4) && /\d/.test(item[2]) === ordered && !RULE.test(text)) {
        width = item[1].length + item[2].length + (item[3].length > 4 || !item[3] ? 1 : item[3].length);
        items.push([{ from: Math.min(line.from + width, line.to), to: line.to }]);
      } else if (items.length && !lately_blank && !begins(source, lines, last)) {
        items.at(-1).push({ from: line.from + indent, to: line.to });  // This is a paragraph's line that was not indented.
      } else break;
      lately_blank = false;
    }
    return [last, write => {
      const all = node(ordered ? 'ol' : 'ul');
      if (ordered) all.start = parseInt(found[2]);
      for (const item of items) all.append(fill(node('li'), source, item, write, depth + 1));
      return all;
    }];
  }
  function paragraph(source, lines, i) {
    let last = i + 1;
    while (last < lines.length && !blank(source, lines[last]) && !begins(source, lines, last)) ++last;
    return [last, write => { const p = node('p'); inline(p, source, lines.slice(i, last), write); return p }];
  }
  function heading(source, line, found) {
    const text = shown(source, line).trimEnd();
    let end = text.length;
    while (text[end - 1] === '#') --end;
    if (end > 0 && !/\s/.test(text[end - 1])) end = text.length;
    end = text.slice(0, end).trimEnd().length;
    return write => {
      const h = node('h' + Math.min(6, found[1].length + 1));
      inline(h, source, [{ from: line.from + found[0].length, to: Math.max(line.from + found[0].length, line.from + end) }], write);
      return h;
    };
  }

  function blocks(source, lines, depth) {
    const all = [];
    for (let i = 0, next; i < lines.length; i = next) {
      next = i + 1;
      if (blank(source, lines[i])) continue;
      const text = shown(source, lines[i]);
      let draw, found;
      if (depth >= DEPTH) [next, draw] = [lines.length, write => { const p = node('p'); for (const l of lines.slice(i)) write(p, l.from, l.to + (l === lines.at(-1) ? 0 : 1)); return p }];
      else if ((found = FENCE.exec(text)) && !(found[1][0] === '`' && found[2].includes('`'))) [next, draw] = fence(source, lines, i, found);
      else if ((found = HEADING.exec(text))) draw = heading(source, lines[i], found);
      else if (RULE.test(text)) draw = () => node('hr');
      else if (QUOTE.test(text)) [next, draw] = quote(source, lines, i, depth);
      else if ((found = ITEM.exec(text)) && found[1].length < 4) [next, draw] = list(source, lines, i, found, depth);
      else if (is_table(source, lines, i)) [next, draw] = table(source, lines, i);
      else [next, draw] = paragraph(source, lines, i);
      all.push({ from: lines[i].from, to: lines[next - 1].to, draw });
    }
    return all;
  }
  function fill(to, source, lines, write, depth) {
    for (const block of blocks(source, lines, depth)) to.append(block.draw(write));
    return to;
  }

  // Draws a source into a node. Parts already drawn from an earlier and shorter source are left as they are.
  return (to, source, write) => {
    if (source.length > WHOLE) { to.replaceChildren(); write(to, 0, source.length); return }
    const lines = [];
    for (let from = 0; from <= source.length;) {
      const end = source.indexOf('\n', from), stop = end < 0 ? source.length : end;
      lines.push({ from, to: stop });
      from = stop + 1;
    }
    const all = blocks(source, lines, 0), old = to.drawn ?? [];
    let same = 0;
    while (same < all.length && same < old.length && old[same].from === all[same].from && old[same].text === source.slice(all[same].from, all[same].to)) ++same;
    old.slice(same).forEach(b => b.node.remove());
    to.drawn = old.slice(0, same).concat(all.slice(same).map(b => ({ from: b.from, text: source.slice(b.from, b.to), node: to.appendChild(b.draw(write)) })));
  };
})();
