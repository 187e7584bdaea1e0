{{/* What all pods of this chart have in common. They pass Pod Security `restricted`. */}}

{{- define "tandem.podSecurity" -}}
runAsNonRoot: true
{{- if not .root.Values.assignedUser }}
runAsUser: {{ .user | default 10001 }}
runAsGroup: {{ .user | default 10001 }}
fsGroup: {{ .user | default 10001 }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tandem.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Scheduling of a component: `root`, `component`, `part` (its values). */}}
{{- define "tandem.scheduling" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .part.topologyKeys }}
topologySpreadConstraints:
  {{- $selector := include "tandem.selector" . }}
  {{- range .part.topologyKeys }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- $selector | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "tandem.podMetadata" -}}
labels: {{- include "tandem.labels" . | nindent 2 }}
{{- with .part.podLabels }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations .part.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "tandem.whoAmI" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}

{{/* Flags of both ends of links and other connections: `flag` is `link_tls`, say, of who dials, `link.tls` of who is
dialed; who does both dials as well. With tenants `letsIn` are the names of clients, and `namespace` is the workers'. */}}
{{- define "tandem.tlsFlags" -}}
{{- if .root.Values.tls.enabled }}
- --{{ .flag }}.certificate=/var/run/tandem/tls/tls.crt
- --{{ .flag }}.private_key=/var/run/tandem/tls/tls.key
- --{{ .flag }}.authority=/var/run/tandem/tls/ca.crt
{{- if .dials }}
- --{{ .flag }}.server_name={{ include "tandem.workerName" . }}
{{- end }}
{{- if and .letsIn .root.Values.tenants }}
- --{{ .flag }}.client_names={{ .letsIn }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tandem.secretMounts" -}}
- {name: kv-key, mountPath: /var/run/tandem/kv-key, readOnly: true}
{{- include "tandem.tlsMount" . }}
{{- end }}

{{- define "tandem.tlsMount" -}}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /var/run/tandem/tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "tandem.secretVolumes" -}}
- name: kv-key
  secret: {secretName: {{ include "tandem.kvKeySecret" . }}, defaultMode: 0440}
{{- include "tandem.tlsVolume" . }}
{{- end }}

{{- define "tandem.tlsVolume" -}}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "tandem.tlsSecret" . }}
    defaultMode: 0440
    items:
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
      - {key: ca.crt, path: ca.crt}
{{- end }}
{{- end }}

{{- define "tandem.redisEnv" -}}
{{- with include "tandem.redisSecret" .root }}
- name: TANDEM_INDEX__REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ include "tandem.redisKey" $.root }}}}
{{- end }}
{{- end }}
