"""What users write: the types, limits and rules of `ModelService` and `EnginePool`, for files and clusters alike."""
