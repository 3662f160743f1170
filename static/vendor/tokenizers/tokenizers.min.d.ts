// What the page uses of @huggingface/tokenizers (local/text/tokenizer.js).
interface Model {
  (words: string[]): string[];
  vocab: string[];
  tokens_to_ids: Map<string, number>;
  unk_token_id: number;
}

export class Tokenizer {
  constructor(tokenizer: object, config: object);
  model: Model;
  normalizer: ((text: string) => string) | null;
  pre_tokenizer: ((text: string, options: { section_index: number }) => string[]) | null;
  post_processor:
    | ((tokens: string[], pair: string[] | null, addSpecialTokens: boolean) => { tokens: string[] })
    | null;
}
