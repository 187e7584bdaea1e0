"""The public gRPC service: `protos/inference.proto` decoded, bounded and answered."""
