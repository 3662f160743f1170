"""Config of a model and the shapes of its tensors; its weights are not needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.analysis.footprint import Footprint
from gpu.checkpoint.auto_dtype import choose_dtype
from gpu.checkpoint.config_shapes import config_shapes
from gpu.checkpoint.inventory import Inventory
from gpu.checkpoint.open_model import open_model
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.safetensors_files import INDEX, WEIGHTS
from gpu.config import ModelConfig
from gpu.files.json_object import JsonObject
from gpu.files.regular_file import is_there
from gpu.gguf.file import is_gguf
from gpu.load_options import LoadOptions


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model to size. `name`: to display."""

    name: str
    config: ModelConfig
    checkpoint: Checkpoint
    inventories: dict[str, Inventory] = field(default_factory=dict, repr=False, compare=False)
    """Inventories made so far, by storage type."""

    @classmethod
    def from_path(cls, name: str, path: str | Path) -> ModelShape:
        """Read a GGUF file, or a folder with config.json; the headers of its weights too, if it
        has them. Raises ModelError for a model that cannot be run."""
        path = Path(path)
        if is_gguf(path) or any(is_there(path / file) for file in (WEIGHTS, INDEX)):
            return cls(name, *open_model(path))
        return cls.from_config(name, path)

    @classmethod
    def from_config(cls, name: str, folder: Path) -> ModelShape:
        """Read config.json of a folder, and nothing of its weights. Raises ModelError as
        `from_path`."""
        return cls._of(name, ModelConfig.from_folder(folder), folder)

    @classmethod
    def of_config(cls, name: str, values: Mapping[str, Any]) -> ModelShape:
        """Return the model of a config.json that has been read. Raises ModelError as
        `from_path`."""
        config = ModelConfig.of(JsonObject(name, dict(values)), JsonObject(name, {}))
        return cls._of(name, config, Path(name))

    @classmethod
    def _of(cls, name: str, config: ModelConfig, path: Path) -> ModelShape:
        return cls(name, config, Checkpoint.of_shapes(path, config_shapes(config)))

    @property
    def parameters(self) -> int:
        """Number of weights; tied ones count once."""
        return self.checkpoint.parameters(self.config.tie_embeddings)

    def inventory(self, dtype: str) -> Inventory:
        if dtype not in self.inventories:
            self.inventories[dtype] = Inventory.of(self.config, self.checkpoint, dtype)
        return self.inventories[dtype]

    def nearest_dtype(self) -> str:
        """Return the storage type that is nearest to the files, or to a model without them."""
        saved = self.inventory("f16").saved_types
        return choose_dtype({name: n for name, n in saved.items() if n}).dtype

    def footprint(self, options: LoadOptions) -> Footprint:
        """Return the memory that the model takes with these options; see `Footprint.of`."""
        inventory = self.inventory(options.dtype)
        return Footprint.of_checkpoint(self.config, self.checkpoint, options, inventory)
