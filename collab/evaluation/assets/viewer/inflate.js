// gunzip: with the browser's DecompressionStream, or, where there is none, with the inflater below (RFC 1951 and 1952).

async function gunzip(bytes) {
  if (typeof DecompressionStream === "undefined") return new TextDecoder().decode(inflate(bytes.subarray(10)));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// Tables of RFC 1951, section 3.2.5: base and extra bits of lengths (from code 257) and of distances.
const LENGTH_EXTRA = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const LENGTH_BASE = LENGTH_EXTRA.map((_, i) => (i === 28 ? 258 : LENGTH_EXTRA.slice(0, i).reduce((sum, e) => sum + (1 << e), 3)));
const DISTANCE_EXTRA = Array.from({ length: 30 }, (_, i) => Math.max(0, (i >> 1) - 1));
const DISTANCE_BASE = DISTANCE_EXTRA.map((_, i) => DISTANCE_EXTRA.slice(0, i).reduce((sum, e) => sum + (1 << e), 1));
const CODE_LENGTH_ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

// A canonical Huffman code as (number of codes of each length, symbols in order of their codes).
function huffman(lengths) {
  const counts = new Uint16Array(16), starts = new Uint16Array(16), symbols = new Uint16Array(lengths.length);
  for (const length of lengths) counts[length]++;
  counts[0] = 0;
  for (let length = 1; length < 16; length++) starts[length] = starts[length - 1] + counts[length - 1];
  lengths.forEach((length, symbol) => { if (length) symbols[starts[length]++] = symbol; });
  return { counts, symbols };
}

function inflate(data) {
  let out = new Uint8Array(Math.max(1024, data.length * 6)), size = 0, at = 0, held = 0, count = 0;
  const bits = (wanted) => {
    while (count < wanted) { held |= data[at++] << count; count += 8; }
    const value = held & ((1 << wanted) - 1);
    held >>>= wanted;
    count -= wanted;
    return value;
  };
  const symbol = ({ counts, symbols }) => {
    let code = 0, first = 0, index = 0;
    for (let length = 1; length < 16; length++) {
      code |= bits(1);
      const here = counts[length];
      if (code - here < first) return symbols[index + code - first];
      index += here;
      first = (first + here) << 1;
      code <<= 1;
    }
    throw new Error("damaged block");
  };
  const room = (more) => {
    if (size + more <= out.length) return;
    const larger = new Uint8Array(Math.max(out.length * 2, size + more));
    larger.set(out);
    out = larger;
  };
  for (let last = false; !last;) {
    last = bits(1) === 1;
    const kind = bits(2);
    if (kind === 0) {
      held = count = 0;
      const length = data[at] | (data[at + 1] << 8);
      room(length);
      out.set(data.subarray(at + 4, at + 4 + length), size);
      at += 4 + length;
      size += length;
      continue;
    }
    const [literals, distances] = kind === 1 ? fixedCodes() : dynamicCodes(bits, symbol);
    for (let value; (value = symbol(literals)) !== 256;) {
      room(258);
      if (value < 256) { out[size++] = value; continue; }
      const length = LENGTH_BASE[value - 257] + bits(LENGTH_EXTRA[value - 257]);
      const place = symbol(distances);
      const distance = DISTANCE_BASE[place] + bits(DISTANCE_EXTRA[place]);
      for (let i = 0; i < length; i++, size++) out[size] = out[size - distance];
    }
  }
  return out.subarray(0, size);
}

function fixedCodes() {
  const lengths = Array.from({ length: 288 }, (_, i) => (i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8));
  return [huffman(lengths), huffman(new Array(30).fill(5))];
}

function dynamicCodes(bits, symbol) {
  const literals = bits(5) + 257, distances = bits(5) + 1, used = bits(4) + 4;
  const short = new Array(19).fill(0);
  for (let i = 0; i < used; i++) short[CODE_LENGTH_ORDER[i]] = bits(3);
  const code = huffman(short), lengths = [];
  while (lengths.length < literals + distances) {
    const value = symbol(code);
    if (value < 16) lengths.push(value);
    else if (value === 16) lengths.push(...new Array(3 + bits(2)).fill(lengths[lengths.length - 1]));
    else lengths.push(...new Array(value === 17 ? 3 + bits(3) : 11 + bits(7)).fill(0));
  }
  return [huffman(lengths.slice(0, literals)), huffman(lengths.slice(literals))];
}
