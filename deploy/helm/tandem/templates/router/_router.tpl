{{- define "tandem.routerFlags" -}}
- --name=$(POD_NAME)
- "--host=::"
- --port=8000
- --grpc_port=9000
- "--metrics_bind=[::]:8001"
{{- if .Values.tls.enabled }}
- --peer_port=8443
{{- end }}
- --kubernetes
{{- if not .Values.allNamespaces }}
- --namespace={{ join "," (include "tandem.namespaces" . | fromJson).all }}
{{- end }}
{{- if .Values.tenants }}
- --tenants={{ include "tandem.tenantNames" . }}
- --tenant_keys=/var/run/tandem/tenant-keys
- --tenant_credentials=/var/run/tandem/tenant-credentials
{{- end }}
- --ticket_key_file=/var/run/tandem/kv-key/keys
- --cache=/var/cache/tandem
- --core.deadlines.drain_s={{ .Values.router.drainSeconds }}
- --max_streams={{ .Values.router.maxStreams }}
{{- if .Values.router.apiKeysSecret }}
- --api_keys=/var/run/tandem/api-keys/keys
{{- end }}
{{- with .Values.telemetry.otlpEndpoint }}
- --otlp_endpoint={{ . }}
{{- end }}
- --log.format={{ .Values.log.format }}
- --log.level={{ .Values.log.level }}
{{- end }}

{{- define "tandem.routerReady" -}}
/ready
{{- end }}
