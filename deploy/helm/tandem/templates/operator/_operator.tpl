{{- define "tandem.operatorFlags" -}}
- --own_namespace=$(POD_NAMESPACE)
- --identity=$(POD_NAME)
{{- if not .Values.allNamespaces }}
- --namespace={{ join "," (include "tandem.namespaces" . | fromJson).all }}
{{- end }}
{{- with include "tandem.tenantNames" . }}
- --tenants={{ . }}
{{- end }}
- --scaler_address=tandem-operator.{{ .Release.Namespace }}:9090
- --service_url=http://tandem-router.{{ .Release.Namespace }}:{{ .Values.router.service.port }}
- --worker_image={{ include "tandem.image" (dict "root" . "image" .Values.workers.image) }}
- --vllm_image={{ include "tandem.image" (dict "root" . "image" .Values.workers.vllmImage) }}
- --image_pull_policy={{ .Values.image.pullPolicy }}
{{- with .Values.image.pullSecrets }}
- --image_pull_secrets={{ range $i, $each := . }}{{ if $i }},{{ end }}{{ $each.name }}{{ end }}
{{- end }}
- --key_secret={{ include "tandem.kvKeySecret" . }}
{{- if .Values.tls.enabled }}
- --tls_secret={{ include "tandem.tlsSecret" . }}
- --tls_name={{ include "tandem.tlsName" . }}
- --router_port=8443
{{- include "tandem.tlsFlags" (dict "root" . "flag" "router_tls" "dials" true) }}
{{- if .Values.tls.keda }}
- --scaler_secure
{{- include "tandem.tlsFlags" (dict "root" . "flag" "scaler_tls") }}
{{- end }}
{{- end }}
{{- with include "tandem.redisSecret" . }}
- --redis_secret={{ . }}/{{ include "tandem.redisKey" $ }}
{{- end }}
{{- with .Values.telemetry.otlpEndpoint }}
- --installation.otlp_endpoint={{ . }}
{{- end }}
{{- /* `helm upgrade --reuse-values` brings the values of the version before, without the defaults of new ones. */}}
{{- $atOnce := (.Values.operator.rollout | default dict).maxConcurrent }}
- --rollouts_at_once={{ kindIs "invalid" $atOnce | ternary 4 $atOnce }}
{{- with (.Values.operator.rollout | default dict).inPlaceAfterSeconds }}
- --in_place_after_s={{ . }}
{{- end }}
{{- with .Values.workers.serviceAccountName }}
- --service_account={{ . }}
{{- end }}
{{- with .Values.workers.acceleratorLabel }}
- --accelerator_label={{ . }}
{{- end }}
{{- with include "tandem.workerDefaults" . }}
- {{ printf "--worker_defaults=%s" . | quote }}
{{- end }}
{{- $template := .Values.workers.template | default dict }}
{{- with $template.secrets }}
- --template_secrets={{ join "," . }}
{{- end }}
{{- with $template.volumes }}
- --template_volumes={{ join "," . }}
{{- end }}
{{- if not (kindIs "invalid" $template.capabilities) }}
- --template_capabilities={{ join "," $template.capabilities }}
{{- end }}
{{- if $template.root }}
- --template_root
{{- end }}
{{- if $template.lockedMemory }}
- --template_locked_memory
{{- end }}
{{- with $template.serviceAccounts }}
- --template_service_accounts={{ join "," . }}
{{- end }}
- --cache_size={{ .Values.workers.cacheSize | default "1Ti" }}
{{- with .Values.workers.sharedHostPath }}
- --shared_host_path={{ . }}
{{- end }}
{{- with .Values.workers.cacheHostPath }}
- --cache_host_path={{ . }}
{{- end }}
{{- if .Values.router.apiKeysSecret }}
- --router_key_file=/var/run/tandem/router-key/operator
- --gate_key_secret={{ .Values.router.apiKeysSecret }}/operator
{{- end }}
- --log.format={{ .Values.log.format }}
- --log.level={{ .Values.log.level }}
{{- end }}

{{/* What the operator may do where ModelServices live. It applies what it makes (create and patch), and never reads
Secrets. */}}
{{- define "tandem.operatorRules" -}}
- apiGroups: [tandem.dev]
  resources: [modelservices]
  verbs: [get, list, watch]
- apiGroups: [tandem.dev]
  resources: [modelservices/status, enginepools/status]
  verbs: [patch]
# Owner references that hold up deletion ask for this where OwnerReferencesPermissionEnforcement is on.
- apiGroups: [tandem.dev]
  resources: [modelservices/finalizers, enginepools/finalizers]
  verbs: [update]
- apiGroups: [tandem.dev]
  resources: [enginepools]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [keda.sh]
  resources: [scaledobjects, triggerauthentications]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [get, list, watch, create, patch, delete]
# Which pod goes first when there are too many is an annotation of the pod.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* What every worker pod gets, as JSON; empty where that is nothing. `$(` would name a variable of the operator. */}}
{{- define "tandem.workerDefaults" -}}
{{- if and .Values.assignedUser .Values.workers.cacheHostPath }}
  {{- fail "assignedUser: nobody knows whom the directory workers.cacheHostPath is to belong to; leave it empty and keep models on claims (pvc://)" }}
{{- end }}
{{- if and .Values.assignedUser .Values.workers.sharedHostPath }}
  {{- fail "assignedUser: nobody knows whom the directory workers.sharedHostPath is to belong to; leave it empty, and KV goes over the network on one node, too" }}
{{- end }}
{{- if and .Values.assignedUser .Values.workers.template.lockedMemory }}
  {{- fail "assignedUser: workers that may lock memory begin as root, which platforms that assign users refuse; leave workers.template.lockedMemory false" }}
{{- end }}
{{- $found := dict }}
{{- $names := list "podLabels" "podAnnotations" "runtimeClassName" "priorityClassName" "tolerations" "resources" "podSecurityContext" "securityContext" }}
{{- range $names }}
  {{- $value := get $.Values.workers . }}
  {{- if $value }}{{ $_ := set $found . $value }}{{ end }}
{{- end }}
{{- if .Values.assignedUser }}{{ $_ := set $found "assignedUser" true }}{{ end }}
{{- if $found }}{{ $found | toJson | replace "$(" "$$(" }}{{ end }}
{{- end }}
