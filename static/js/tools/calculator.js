// Calculator: a recursive-descent parser of arithmetic. Nothing of an expression is ever run as code.
//
//   sum      product (("+" | "-") product)*
//   product  signed (("*" | "/" | "%") signed)*
//   signed   ("+" | "-") signed | power
//   power    value (("^" | "**") signed)?       so -2^2 is -4 and 2^3^2 is 2^9
//   value    number | constant | function "(" sum ("," sum)* ")" | "(" sum ")"

const MAX_CHARS = 1000;
const MAX_DEPTH = 100;
const TOKEN = /\s*(?:(\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)|([a-z]\w*)|(\*\*|[-+*/%^(),×÷·−]))/iy;
/** @type {Record<string, string>} */
const WRITTEN = { "×": "*", "·": "*", "÷": "/", "−": "-", "**": "^" };
const CONSTANTS = new Map([
  ["pi", Math.PI],
  ["e", Math.E],
]);
/** By name: the function, and how many numbers it takes; Infinity: one or more. @type {Map<string, [(...x: number[]) => number, number]>} */
const FUNCTIONS = new Map([
  ["sqrt", [Math.sqrt, 1]],
  ["abs", [Math.abs, 1]],
  ["round", [Math.round, 1]],
  ["floor", [Math.floor, 1]],
  ["ceil", [Math.ceil, 1]],
  ["exp", [Math.exp, 1]],
  ["ln", [Math.log, 1]],
  ["log", [Math.log10, 1]],
  ["sin", [Math.sin, 1]],
  ["cos", [Math.cos, 1]],
  ["tan", [Math.tan, 1]],
  ["min", [Math.min, Infinity]],
  ["max", [Math.max, Infinity]],
]);
/** Digits of a number that may be rounded. */
const SIGNIFICANT = 12;

/**
 * Return the value of an expression as text. Throws an Error that says what is wrong.
 *
 * @param {string} expression
 */
export function calculate(expression) {
  if (expression.length > MAX_CHARS)
    throw new Error(`an expression may have ${MAX_CHARS} characters, but this one has ${expression.length}`);
  const value = new Parser(expression).value();
  if (!Number.isFinite(value)) throw new Error(`${expression.trim()} is not a finite number`);
  return written(value);
}

/** A number as text: an integer that a double holds exactly with all its digits, a rounded one never as if it was exact. @param {number} value */
function written(value) {
  if (Number.isSafeInteger(value)) return String(value);
  const rounded = Number(value.toPrecision(SIGNIFICANT));
  return Math.abs(rounded) > Number.MAX_SAFE_INTEGER ? rounded.toExponential() : String(rounded);
}

class Parser {
  /** @param {string} text */
  constructor(text) {
    this.tokens = tokensOf(text);
    this.at = 0;
    this.depth = 0;
  }

  /** The value of the whole expression. */
  value() {
    const value = this.sum();
    if (this.at < this.tokens.length) throw new Error(`expected an operator before “${this.tokens[this.at]}”`);
    return value;
  }

  /** Read one of `symbols` if it comes next; return it, or "". @param {string[]} symbols */
  take(...symbols) {
    const next = this.tokens[this.at];
    if (!symbols.includes(next)) return "";
    this.at += 1;
    return next;
  }

  /** @param {string} symbol */
  expect(symbol) {
    if (!this.take(symbol)) throw new Error(`expected “${symbol}” ${this.place()}`);
  }

  place() {
    const next = this.tokens[this.at];
    return next === undefined ? "at the end" : `before “${next}”`;
  }

  /** @returns {number} */
  sum() {
    let value = this.product();
    for (let sign; (sign = this.take("+", "-")); ) {
      const right = this.product();
      value = sign === "+" ? value + right : value - right;
    }
    return value;
  }

  /** @returns {number} */
  product() {
    let value = this.signed();
    for (let sign; (sign = this.take("*", "/", "%")); ) {
      const right = this.signed();
      if (sign !== "*" && right === 0) throw new Error("division by zero");
      value = sign === "*" ? value * right : sign === "/" ? value / right : value % right;
    }
    return value;
  }

  /** @returns {number} */
  signed() {
    this.depth += 1;
    if (this.depth > MAX_DEPTH) throw new Error(`expected at most ${MAX_DEPTH} levels of brackets and signs`);
    const sign = this.take("-", "+");
    const value = sign ? this.signed() : this.power();
    this.depth -= 1;
    return sign === "-" ? -value : value;
  }

  /** @returns {number} */
  power() {
    const base = this.operand();
    return this.take("^") ? base ** this.signed() : base;
  }

  /** @returns {number} */
  operand() {
    if (this.take("(")) {
      const value = this.sum();
      this.expect(")");
      return value;
    }
    const token = this.tokens[this.at];
    if (token === undefined || /^[-+*/%^(),]$/.test(token)) throw new Error(`expected a number ${this.place()}`);
    this.at += 1;
    if (!/^[a-z]/i.test(token)) return Number(token);
    const name = token.toLowerCase();
    const constant = CONSTANTS.get(name);
    if (constant !== undefined) return constant;
    return this.call(name);
  }

  /** @param {string} name */
  call(name) {
    const found = FUNCTIONS.get(name);
    if (!found) throw new Error(`“${name}” is not known; known: ${[...CONSTANTS.keys(), ...FUNCTIONS.keys()].join(", ")}`);
    const [compute, n] = found;
    this.expect("(");
    const values = [this.sum()];
    while (this.take(",")) values.push(this.sum());
    this.expect(")");
    if (values.length > n) throw new Error(`${name} takes one number, but got ${values.length}`);
    return compute(...values);
  }
}

/** @param {string} text */
function tokensOf(text) {
  const tokens = [];
  const whole = text.trimEnd();
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < whole.length) {
    const start = TOKEN.lastIndex;
    const match = TOKEN.exec(whole);
    if (!match) throw new Error(`expected a number, a name or an operator, but got “${whole.slice(start).trim()[0]}”`);
    tokens.push(match[1] ?? match[2] ?? WRITTEN[match[3]] ?? match[3]);
  }
  if (!tokens.length) throw new Error("the expression is empty");
  return tokens;
}
