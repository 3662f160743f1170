// The Jinja interpreter with Python's way of trimming: which white space it knows, and
// `lstrip("\n")`, whose argument the library ignores.

import { Interpreter } from "../../../vendor/jinja/jinja.js";
import { strip } from "./python-text.js";

/** At which ends each strips. @type {Record<string, [atStart: boolean, atEnd: boolean]>} */
const STRIPS = { strip: [true, true], lstrip: [true, false], rstrip: [false, true] };

export class PythonInterpreter extends Interpreter {
  /** @type {Interpreter["evaluateCallExpression"]} */
  evaluateCallExpression(call, names) {
    const { object, property, computed } = call.callee;
    const ends = !computed && property && Object.hasOwn(STRIPS, property.value);
    const text = ends ? this.evaluate(object, names) : null;
    if (text?.type !== "StringValue") return super.evaluateCallExpression(call, names);
    const [[chars]] = this.evaluateArguments(call.args, names);
    return new text.constructor(strip(text.value, ...STRIPS[property.value], chars?.value));
  }

  /** @type {Interpreter["applyFilter"]} */
  applyFilter(operand, filter, names) {
    if (filter.value === "trim" && operand.type === "StringValue")
      return new operand.constructor(strip(operand.value));
    return super.applyFilter(operand, filter, names);
  }
}
