// What the page uses of @huggingface/jinja (local/text).
interface Value {
  type: string;
  value: string;
  constructor: new (value: string) => Value;
}

interface Expression {
  type: string;
  value: string;
}

export class Environment {
  set(name: string, value: unknown): void;
}

export class Interpreter {
  constructor(environment: Environment);
  run(program: unknown): Value;
  evaluate(expression: Expression, names: Environment): Value;
  evaluateArguments(args: Expression[], names: Environment): [Value[], Map<string, Value>];
  evaluateCallExpression(
    call: { callee: { object: Expression; property: Expression; computed: boolean }; args: Expression[] },
    names: Environment,
  ): Value;
  applyFilter(operand: Value, filter: Expression, names: Environment): Value;
}

export class Template {
  constructor(source: string);
  parsed: unknown;
  render(names: Record<string, unknown>): string;
}
