// Shapes of the instruments.

/** An entry of look/instruments.js, which has its parts. */
interface InstrumentEntry {
  name: string;
  tab: string;
  title: string;
  what: string;
  fits?(hello: ToPage.Hello): boolean;
  fetch(): Promise<Instrument>;
}

/** The focus of the page, which an instrument shows (look/shared/context.js). */
interface Focus {
  answer: Answer | null;
  token: Token | PromptToken | null;
  index: number | null;
  row: Row | null;
  hello: ToPage.Hello;
  signal: AbortSignal;
}

/** The focus where there is a run. */
interface RunFocus extends Focus {
  answer: Answer;
}

/** The focus where there is a token. */
interface TokenFocus extends RunFocus {
  token: Token | PromptToken;
  index: number;
}

/** A token of an answer (look/shared/context.js). */
type Place = Pick<Focus, "answer" | "token" | "index">;

/** The tokens of a run, and the position of one of them. */
interface Sequence {
  segment: Segment;
  ids: number[];
  texts: string[];
  position: number;
}

type Source = string | Promise<string>;

/** An instrument; look/frame.js says what its parts do. */
type Instrument = InstrumentParts &
  (
    | { needs: "nothing"; show(focus: Focus): Source }
    | { needs: "run"; show(focus: RunFocus): Source }
    | { needs: "token"; show(focus: TokenFocus): Source }
  );

interface InstrumentParts {
  asks?: boolean;
  setUp(root: HTMLElement): void;
  hide?(isClosed: boolean): void;
  table(): Numbers;
}

/** One view of an instrument that has several (look/shared/views.js). */
interface InstrumentView<F extends Focus> {
  name: string;
  label: string;
  setUp(root: HTMLElement): void;
  show(focus: F): Source;
  hide?(isClosed: boolean): void;
  table(): Numbers;
}

/** A column of an instrument's numbers; `format`: of its numbers in the table on the page. */
type Column = string | { name: string; format(value: number): string };

interface Numbers {
  columns: Column[];
  rows: unknown[][];
}

/** A rectangle on a canvas: x, y, width, height. */
type Rect = [x: number, y: number, width: number, height: number];

/** Where a label may stand: its x, and how it is aligned there. */
type LabelPlace = [x: number, align: "start" | "center" | "end"];

interface LabelStyle {
  colour?: PaletteName;
  align?: "start" | "center" | "end";
  weight?: number;
}

type PaletteName = Exclude<keyof typeof import("../ui/palette.js").palette, "map" | "pixels">;

type FrameArray = FrameAnswer["arrays"][string];
