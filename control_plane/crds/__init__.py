"""CustomResourceDefinitions from the types of `tandem.spec`."""
