"""Push a dataset to the Hub: its Parquet files and its card, nothing else of the run."""

from __future__ import annotations

from pathlib import Path

from simulators.errors import ConfigurationError


def push_dataset(folder: Path, dataset_id: str, *, private: bool = True) -> str:
    """Upload the datasets in `folder` to a dataset repository on the Hub, made first where it is not there; return its address.

    Raises:
        ConfigurationError: for a name that is no id, or when the Hub refuses.
    """
    from huggingface_hub import HfApi

    owner, _, name = dataset_id.partition("/")
    if not owner or not name or "/" in name:
        raise ConfigurationError(f"push_to is {dataset_id!r}; it must be OWNER/NAME")
    api = HfApi()
    try:
        address = api.create_repo(dataset_id, repo_type="dataset", private=private, exist_ok=True)
        api.upload_folder(
            repo_id=dataset_id,
            repo_type="dataset",
            folder_path=str(folder),
            allow_patterns=["*.parquet", "README.md"],
            commit_message="MR-ranked conversations",
        )
    except Exception as error:  # the Hub client raises dozens of types, and none of them means anything else to a user
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigurationError(
            f"cannot push to dataset {dataset_id}: {reason}; it is kept in {folder}, check the id, the network and the login"
        ) from None
    return str(address)
