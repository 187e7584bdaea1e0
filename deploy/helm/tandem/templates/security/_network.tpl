{{/* Names, spans, and what the installation adds. */}}
{{- define "tandem.everyonesEgress" -}}
{{- with .Values.networkPolicy.dns -}}
- to: {{- toYaml . | nindent 4 }}
  ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]
{{- end }}
{{- with .Values.telemetry.otlpEndpoint }}
{{- $port := regexFind ":[0-9]+" (. | replace "://" "//") | trimPrefix ":" | default "4317" }}
- ports: [{protocol: TCP, port: {{ $port }}}]
{{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tandem.apiServerEgress" -}}
- ports:
    {{- range .Values.networkPolicy.apiServer.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .Values.networkPolicy.apiServer.peers }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "tandem.modelSourcesEgress" -}}
{{- with .Values.networkPolicy.modelSources -}}
{{- if .ports -}}
- ports:
    {{- range .ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .peers }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Where the operator asks routers. */}}
{{- define "tandem.routerPeers" -}}
{{- ternary "8443" "8000" .Values.tls.enabled -}}
{{- end }}

{{/* Redis here, or at the port of its URL; where that lies in a Secret of others, at the one that is named. */}}
{{- define "tandem.redisEgress" -}}
{{- if include "tandem.ownRedis" . -}}
- to:
    - namespaceSelector:
        matchLabels: {kubernetes.io/metadata.name: {{ .Release.Namespace }}}
      podSelector:
        matchLabels: {{- include "tandem.selector" (dict "root" . "component" "redis") | nindent 10 }}
  ports: [{protocol: TCP, port: 6379}]
{{- else if include "tandem.redisSecret" . -}}
- ports:
    - {protocol: TCP, port: {{ regexFind ":[0-9]+(/|$)" .Values.redis.url | trimAll ":/" | default (.Values.redis.port | default 6379 | toString) }}}
{{- end }}
{{- end }}

{{/* Pods of ModelServices, as peers of a policy in the release's namespace. */}}
{{- define "tandem.workerPeers" -}}
{{- if .Values.allNamespaces -}}
- namespaceSelector: {}
  podSelector: {matchExpressions: [{key: tandem.dev/service, operator: Exists}]}
{{- else -}}
- namespaceSelector:
    matchExpressions:
      - {key: kubernetes.io/metadata.name, operator: In, values: {{ (include "tandem.namespaces" . | fromJson).all | toJson }}}
  podSelector: {matchExpressions: [{key: tandem.dev/service, operator: Exists}]}
{{- end }}
{{- end }}
